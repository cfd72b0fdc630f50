"""What the panel "Where the time goes" draws of a run that loses workers, by promtool."""

import json
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml

from support.binaries import skipping_unavailable
from support.tools import prometheus
from trainingrun_protocol.progress import RecordKind
from trainingrun_runtime.progress.prometheus_metrics import exposition
from trainingrun_runtime.progress.time_accounting import StepReport, TimeAccounting

DASHBOARD = Path(__file__).parents[2] / "charts/trainingrun-operator/files/dashboards/run.json"
RUN = {"namespace": "team-a", "run": "digits"}
LOSSES = (120, 240)
BEGINS = {5: 0, 130: 95, 330: 200}
"""Minutes in which worker groups begin, from which steps: the first loss costs 20 of them."""


def a_run() -> Iterator[str]:
    """What is scraped each minute of a run that does a step a minute, but while it has no group."""
    accounting = TimeAccounting(attempt=1, fencing_token=1, now=0.0)
    begun: int | None = None
    for minute in range(400):
        now = minute * 60.0
        if minute in LOSSES:
            accounting.disrupted(now, RecordKind.WORKER_LOST, "rank 1 died")
            begun = None
        elif minute in BEGINS:
            begun, resumed = minute, BEGINS[minute]
            group = accounting.group_started(now, world_size=2, resumed_step=resumed)
        elif begun is not None:
            first, spent = begun * 60.0, (minute - begun) * 60.0
            step = resumed + minute - begun
            accounting.stepped(StepReport(group, step, 1000, first, now, spent, checkpoint=0.0))
        yield exposition(accounting.document(now).to_dict(), RUN)


def panel() -> str:
    """All that it draws."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    (found,) = (one for one in panels if one["title"] == "Where the time goes")
    text = " or ".join(f"({target['expr']})" for target in found["targets"])
    for name, value in {**RUN, "__rate_interval": "4m"}.items():
        text = text.replace(f"${name}", value)
    return text


def test_the_shares_add_up_to_all_of_the_time_through_losses_and_long_waits(tmp_path: Path) -> None:
    with skipping_unavailable():
        promtool = prometheus("promtool")
    series = defaultdict(list)
    for text in a_run():
        for line in text.splitlines():
            if line.startswith("trainingrun_seconds_total"):
                name, _, value = line.rpartition(" ")
                series[name].append(value)
    drawn = panel()
    holds = (f"count({drawn}) - count(({drawn}) >= 0 <= 1)", f"round(sum({drawn}), 0.001) - 1")
    # While nothing has been counted for an hour there are no shares.
    minutes = [minute for minute in range(10, 400, 5) if not 300 <= minute <= 330]
    test = {
        "interval": "1m",
        "input_series": [{"series": k, "values": " ".join(v)} for k, v in series.items()],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{at}m", "exp_samples": [{"labels": "{}", "value": 0}]}
            for at in minutes
            for expr in holds
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"tests": [test]}))
    command = [promtool, "test", "rules", tmp_path / "test.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
