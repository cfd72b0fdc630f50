"""Each alert fires for series that it is for, and for no others, by Prometheus' own promtool."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from support.binaries import skipping_unavailable
from support.tools import prometheus
from trainingrun.api.reasons import WAITS

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "trainingrun-operator" / "files" / "alerts.yaml"
ALERTS = {
    rule["alert"]: rule
    for group in yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"]
    for rule in group["rules"]
}
RUN = 'namespace="team-a",run="digits"'
OF_RUN = {"namespace": "team-a", "run": "digits"}


class Case(NamedTuple):
    """Series each minute, and what an alert says of them at a time; `fires` None: nothing."""

    alert: str
    at: str
    series: dict[str, str]
    fires: dict[str, str] | None = None
    """The alert's labels beside its severity."""
    summary: str = ""


def run_series(**values: str) -> dict[str, str]:
    """Series of one run, as two operators show them; `phase` is its value."""
    found = {}
    for name, value in values.items():
        more = f',phase="{value.partition(" ")[0]}"' if name == "phase" else ""
        points = value.partition(" ")[2] or "1x200" if name == "phase" else value
        for pod in ("operator-0", "operator-1"):
            found[f'trainingrun_run_{name}{{{RUN},pod="{pod}"{more}}}'] = points
    return found


def condition(kind: str, reason: str, values: str = "1x200") -> dict[str, str]:
    return {f'trainingrun_run_condition{{{RUN},condition="{kind}",reason="{reason}"}}': values}


def of_operator(name: str, values: str, **labels: str) -> dict[str, str]:
    own = {"namespace": "system", "pod": "operator-0", **labels}
    inside = ",".join(f'{key}="{value}"' for key, value in own.items())
    return {f"trainingrun_{name}{{{inside}}}": values}


DIGITS = "TrainingRun team-a/digits"
NO_LEADER = "No operator of TrainingRuns leads."
CASES = {
    "stalled": Case(
        "TrainingRunStalled",
        "6m",
        condition("Stalled", "SecretMissing"),
        OF_RUN | {"reason": "SecretMissing"},
        f"{DIGITS} is stalled (SecretMissing).",
    ),
    "stalled for a moment": Case(
        "TrainingRunStalled", "10m", condition("Stalled", "SecretMissing", "1x3 _x20")
    ),
    "waits for nodes": Case(
        "TrainingRunWaits",
        "31m",
        condition("Waiting", "Unschedulable"),
        OF_RUN | {"reason": "Unschedulable"},
        f"{DIGITS} waits (Unschedulable).",
    ),
    "waits for a pod that hangs as it first starts": Case(
        "TrainingRunWaits",
        "31m",
        run_series(phase="Starting") | condition("Waiting", "PodNotSetUp"),
        OF_RUN | {"reason": "PodNotSetUp"},
        f"{DIGITS} waits (PodNotSetUp).",
    ),
    "waits not for long": Case("TrainingRunWaits", "20m", condition("Waiting", "Unschedulable")),
    "waits for its turn": Case("TrainingRunWaits", "2h", condition("Waiting", "Queued")),
    "does no step": Case(
        "TrainingRunStandsStill",
        "75m",
        run_series(phase="Running", step="0+10x10 100x100"),
        OF_RUN,
        f"{DIGITS} has done no step for an hour.",
    ),
    "does a step now and then": Case(
        "TrainingRunStandsStill",
        "150m",
        run_series(phase="Running", step=" ".join(f"{n}x45" for n in range(1, 5))),
    ),
    "was suspended": Case(
        "TrainingRunStandsStill",
        "150m",
        run_series(phase="Suspended", step="100x200"),
    ),
    "has a function without steps": Case(
        "TrainingRunStandsStill", "150m", run_series(phase="Running", step="0x200")
    ),
    "has hung": Case(
        "TrainingRunHangs",
        "70m",
        run_series(phase="Running", hang_time_seconds="3600x200"),
        OF_RUN,
        f"{DIGITS} hangs, or has hung in the last half hour.",
    ),
    "hangs still": Case(
        "TrainingRunHangs",
        "150m",
        run_series(hang_time_seconds="3600x200") | condition("Waiting", "Hang"),
        OF_RUN,
        f"{DIGITS} hangs, or has hung in the last half hour.",
    ),
    "has hung long ago": Case("TrainingRunHangs", "150m", run_series(hang_time_seconds="3600x200")),
    "has an old checkpoint": Case(
        "TrainingRunCheckpointOld",
        "3h",
        run_series(
            phase="Running",
            start_time_seconds="60x200",
            checkpoint_time_seconds="600x200",
            checkpoint_interval_seconds="1200x200",
        ),
        OF_RUN,
        f"{DIGITS} has made no checkpoint for 2h 50m 0s.",
    ),
    "never had a checkpoint": Case(
        "TrainingRunCheckpointOld",
        "3h",
        run_series(phase="Recovering", start_time_seconds="1800x200"),
        OF_RUN,
        f"{DIGITS} has made no checkpoint for 2h 30m 0s.",
    ),
    "does no step as no node is there": Case(
        "TrainingRunStandsStill",
        "150m",
        run_series(phase="Recovering", step="100x200") | condition("Waiting", "Unschedulable"),
    ),
    "makes no checkpoint as no node is there": Case(
        "TrainingRunCheckpointOld",
        "3h",
        run_series(phase="Recovering", start_time_seconds="60x200")
        | condition("Waiting", "Unschedulable"),
    ),
    "trains after a wait of eight hours": Case(
        "TrainingRunGoodputLow",
        "90m",
        run_series(seconds="0x60 28800+60x140", productive_seconds="0x60 0+60x140"),
    ),
    "makes a checkpoint every two hours": Case(
        "TrainingRunCheckpointOld",
        "200m",
        run_series(
            phase="Running",
            start_time_seconds="60x200",
            checkpoint_time_seconds="600x200",
            checkpoint_interval_seconds="7200x200",
        ),
    ),
    "has waited for hours before it began": Case(
        "TrainingRunCheckpointOld",
        "3h",
        run_series(phase="Running _x150 1x50", start_time_seconds="60x200"),
    ),
    "repeats what it did": Case(
        "TrainingRunGoodputLow",
        "90m",
        run_series(seconds="0+60x200", productive_seconds="0+24x200"),
        OF_RUN,
        f"{DIGITS} has a goodput of 40%.",
    ),
    "had a bad start, and trains since": Case(
        "TrainingRunGoodputLow",
        "150m",
        run_series(seconds="0+60x200", productive_seconds="0+6x60 360+57x140"),
    ),
    "has trained for minutes alone": Case(
        "TrainingRunGoodputLow",
        "60m",
        run_series(seconds="0+60x20 1200x200", productive_seconds="0+6x20 120x200"),
    ),
    "fails again and again": Case(
        "TrainingRunFailsRepeatedly",
        "50m",
        run_series(losses="0+1x5 5x200"),
        OF_RUN,
        f"{DIGITS} had 5 losses and failures within an hour.",
    ),
    "had as many in a day": Case(
        "TrainingRunFailsRepeatedly", "3h", run_series(losses="0x40 1x40 2x40 3x40 4x40 5x40")
    ),
    "has failed": Case(
        "TrainingRunFailed",
        "2m",
        run_series(phase="Failed"),
        OF_RUN,
        f"{DIGITS} has failed.",
    ),
    "recovers": Case("TrainingRunFailed", "2m", run_series(phase="Recovering")),
    "has spent nearly all": Case(
        "TrainingRunBudgetNearlySpent",
        "2m",
        run_series(budget_ratio="0.95x9"),
        OF_RUN,
        f"{DIGITS} has cost 95% of its budget.",
    ),
    "has money left": Case("TrainingRunBudgetNearlySpent", "2m", run_series(budget_ratio="0.85x9")),
    "all stand by": Case(
        "TrainingRunOperatorNoLeader",
        "3m",
        of_operator("operator_leader", "0x20") | of_operator("operator_leader", "0x20", pod="b"),
        {"namespace": "system"},
        NO_LEADER,
    ),
    "no operator is there": Case("TrainingRunOperatorNoLeader", "3m", {"up": "0x9"}, {}, NO_LEADER),
    "another takes over": Case(
        "TrainingRunOperatorNoLeader",
        "20m",
        of_operator("operator_leader", "1x3 _x20")
        | of_operator("operator_leader", "0x3 1x20", pod="b"),
    ),
    "reconciles fail": Case(
        "TrainingRunOperatorErrors",
        "20m",
        of_operator("reconcile_errors_total", "0+2x30", reason="Forbidden"),
        {"namespace": "system", "reason": "Forbidden"},
        "Reconciles of TrainingRuns fail (Forbidden), 20 in 10 minutes.",
    ),
    "conflicts": Case(
        "TrainingRunOperatorErrors",
        "20m",
        of_operator("reconcile_errors_total", "0+20x30", reason="Conflict"),
    ),
    "does not keep up": Case(
        "TrainingRunOperatorLags",
        "20m",
        of_operator("queue_depth", "30x30"),
        {"namespace": "system"},
        "The operator of TrainingRuns does not keep up, 30 runs or more wait for it.",
    ),
    "a burst of events": Case(
        "TrainingRunOperatorLags", "20m", of_operator("queue_depth", "0x5 900x5 0x3 900x9")
    ),
    "a watch is refused": Case(
        "TrainingRunOperatorWatchStale",
        "6m",
        of_operator("operator_watch_stale", "1x20", kind="Pod"),
        {"namespace": "system", "kind": "Pod"},
        "The operator of TrainingRuns gets no events of kind Pod.",
    ),
    "watches work": Case(
        "TrainingRunOperatorWatchStale",
        "6m",
        of_operator("operator_watch_stale", "0x20", kind="Pod"),
    ),
}


@pytest.fixture(scope="module")
def promtool() -> Path:
    with skipping_unavailable():
        return prometheus("promtool")


def test_prometheus_takes_the_rules(promtool: Path) -> None:
    done = subprocess.run(
        [promtool, "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout


def expected(case: Case) -> list[dict[str, Any]]:
    if case.fires is None:
        return []
    rule = ALERTS[case.alert]
    return [
        {
            "exp_labels": rule["labels"] | case.fires,
            "exp_annotations": rule["annotations"] | {"summary": case.summary},
        }
    ]


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_for_what_it_is_for_and_for_nothing_else(
    alert: str, promtool: Path, tmp_path: Path
) -> None:
    cases = {name: case for name, case in CASES.items() if case.alert == alert}
    assert {case.fires is None for case in cases.values()} == {True, False}
    hold(cases, RULES, promtool, tmp_path)


def hold(cases: dict[str, Case], rules: Path, promtool: Path, tmp_path: Path) -> None:
    """Each case, by promtool, with these rules."""
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": k, "values": v} for k, v in case.series.items()],
            "alert_rule_test": [
                {"eval_time": case.at, "alertname": case.alert, "exp_alerts": expected(case)}
            ],
        }
        for name, case in cases.items()
    ]
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests})
    )
    done = subprocess.run(
        [promtool, "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_release_without_an_operator_is_told_of_though_another_one_leads(
    render: Callable[..., list[dict[str, Any]]], promtool: Path, tmp_path: Path
) -> None:
    objects = render("metrics.prometheusRule.enabled=true")
    (found,) = (one for one in objects if one["kind"] == "PrometheusRule")
    rules, own = tmp_path / "rules.yaml", found["metadata"]["namespace"]
    rules.write_text(yaml.safe_dump(found["spec"]))
    alert = "TrainingRunOperatorNoLeader"
    another = of_operator("operator_leader", "1x20", namespace="another")
    both = another | of_operator("operator_leader", "1x20", namespace=own)
    cases = {
        "another one": Case(alert, "3m", another, {"namespace": own}, NO_LEADER),
        "both": Case(alert, "3m", both),
    }
    hold(cases, rules, promtool, tmp_path)


def test_each_alert_has_a_section_in_the_runbook_and_says_all_that_one_reads() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs" / "runbook.md").read_text(), re.M)
    assert headings == list(ALERTS)
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == f"docs/runbook.md#{name.lower()}"


def test_reasons_in_an_alert_are_those_of_conditions() -> None:
    named = re.findall(r'reason!~"([^"]+)"', ALERTS["TrainingRunWaits"]["expr"])[0].split("|")
    assert set(named) <= {reason.value for reason in WAITS}
