"""`trainingrun cost` against a real API server, of statuses as the operator writes them."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from support.apiserver import ApiServer
from support.operators import a_run
from trainingrun.api.status import (
    AcceleratorSeconds,
    Attempt,
    Cost,
    Disruptions,
    Loss,
    LossReason,
    RunStatus,
)
from trainingrun.cli.main import app

Call = Callable[..., tuple[int, list[list[str]], str]]
PRICED = Cost(
    unit="accelerator",
    total_seconds=7200.0,
    seconds=AcceleratorSeconds(training=5400.0, lost=1800.0),
    currency="USD",
    amount=12.5,
    at_least=12.5,
    wasted=3.125,
    saved_by_spot=20.0,
)
UNPRICED = Cost(
    total_seconds=3600.0,
    seconds=AcceleratorSeconds(training=3600.0),
    currency="USD",
    at_least=1.5,
)


@pytest.fixture
def cost(apiserver: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Calls the command in the test's namespace; exit code, words of each line, errors."""
    location = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
    monkeypatch.setattr(location, str(apiserver.kubeconfig))

    def call(*options: str) -> tuple[int, list[list[str]], str]:
        result = CliRunner().invoke(app, ["cost", "-n", namespace, *options])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return (
            result.exit_code,
            [line.split() for line in result.stdout.splitlines()],
            (result.stderr),
        )

    return call


@pytest.fixture
def runs(apiserver: ApiServer, namespace: str) -> None:
    """Two runs of team red, of which one has no price, and one of no team that has begun."""

    def create(name: str, labels: dict[str, str], ended: float | None, cost: Cost | None) -> None:
        manifest = a_run(namespace, name=name)
        manifest["metadata"]["labels"] = labels
        made = apiserver.create(manifest)
        at = datetime.now(UTC) - timedelta(seconds=ended or 0)
        status: dict[str, Any] = RunStatus(
            completion_time=at.strftime("%Y-%m-%dT%H:%M:%SZ") if ended else None, cost=cost
        ).to_dict()
        apiserver.replace({**made, "status": status}, "status")

    queue = {"kueue.x-k8s.io/queue-name": "gpus"}
    create("first", {"team": "red", **queue}, 3 * 86400, PRICED)
    create("second", {"team": "red"}, 60, UNPRICED)
    create("third", {}, None, None)


def test_of_one_run_its_hours_causes_and_money_are_shown(runs: None, cost: Call) -> None:
    code, lines, errors = cost("first")
    assert (code, errors) == (0, "")
    heads = "RUN HOURS TRAINING SAVING LOST STARTING WAITING COST WASTED SAVED BY SPOT"
    assert lines[0] == heads.split()
    assert lines[1] == [
        "first",
        "2.00",
        "75%",
        "0%",
        "25%",
        "0%",
        "0%",
        "12.50",
        "USD",
        "3.12",
        "USD",
        "20.00",
        "USD",
    ]


def test_of_one_run_each_loss_and_the_end_of_each_attempt_is_told(
    apiserver: ApiServer, namespace: str, cost: Call
) -> None:
    lost = Loss(
        number=1,
        time="2026-11-26T03:12:44Z",
        attempt=1,
        reason=LossReason.NODE_LOST,
        pods=["worker-x7k2p"],
        node="spot-1",
        signs="its Lease is no longer renewed",
        step=4210,
        lost_steps=1,
        lost_seconds=31.4,
    )
    unknown = Loss(
        number=2, time="2026-11-26T03:20:00Z", attempt=1, reason=LossReason.HANG, signs="rank 1"
    )
    ended = Attempt(
        number=1,
        ray_job="lossy-1",
        outcome="Failed",
        capacity="OnDemand",
        start_time="2026-11-26T03:00:00Z",
        end_time="2026-11-26T03:15:00Z",
        reason=LossReason.APPLICATION_ERROR,
        message="rank 1 raised ValueError: \x1b[31msample 7",
    )
    status = RunStatus(disruptions=Disruptions(history=[lost, unknown]), attempts=[ended])
    made = apiserver.create(a_run(namespace, name="lossy"))
    apiserver.replace({**made, "status": status.to_dict()}, "status")

    code, lines, _ = cost("lossy")
    assert code == 0
    assert [" ".join(line) for line in lines[2:]] == [
        "2026-11-26T03:12:44Z NodeLost worker-x7k2p on node spot-1: its Lease is no longer "
        "renewed; lost 1 step and 31s",
        "2026-11-26T03:15:00Z attempt 1 ended, ApplicationError: rank 1 raised ValueError: "
        "sample 7",
        "2026-11-26T03:20:00Z Hang: rank 1; what it cost is not known",
    ]


def test_runs_are_summed_and_what_has_no_price_is_unknown(runs: None, cost: Call) -> None:
    code, lines, errors = cost("--by", "team")
    assert code == 0
    assert [line[:3] for line in lines[1:]] == [
        ["-", "1", "0.00"],
        ["red", "2", "3.00"],
        ["all", "3", "3.00"],
    ]
    assert lines[2][-4:] == [">=14.00", "USD", "?", "?"]
    assert "third held nothing that the operator has counted." in errors
    assert "What second cost is at least the amount" in errors


def test_runs_are_grouped_by_queue_and_namespace(runs: None, cost: Call, namespace: str) -> None:
    _, lines, _ = cost("--by", "queue")
    assert [line[:2] for line in lines[1:]] == [["-", "2"], ["gpus", "1"], ["all", "3"]]
    _, lines, _ = cost("--by", "namespace")
    assert [namespace, "3"] in [line[:2] for line in lines[1:]]


def test_runs_that_ended_long_ago_can_be_left_out(runs: None, cost: Call) -> None:
    _, lines, _ = cost("--since", "2d")
    assert [line[0] for line in lines[1:]] == ["second", "third", "all"]


def test_one_run_is_not_summed(runs: None, cost: Call) -> None:
    code, _, errors = cost("first", "--by", "team")
    assert code == 1
    assert errors.strip() == "--by is for several runs; leave it out, or first"
