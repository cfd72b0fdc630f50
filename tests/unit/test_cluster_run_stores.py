"""The stores of the kinds of a run: which runs are not done yet."""

from support.builders import an_object
from trainingrun.cluster.run_stores import Stores
from trainingrun.controller.operator_metrics import Metrics


def a_run(name: str, version: int, **status) -> dict:
    return an_object(name, version, uid=name, spec={}, status=status)


def a_pod(name: str, run: str, version: int) -> dict:
    metadata = {"labels": {"trainingrun.dev/run": run}}
    return an_object(name, version, uid=name, metadata=metadata, spec={})


def test_an_ended_run_is_unfinished_while_something_of_it_is_left():
    stores = Stores()
    stores.runs.store.update(a_run("goes-on", 1))
    stores.runs.store.update(a_run("ended", 2, completionTime="2026-01-01T00:00:00Z"))
    stores.pods.store.update(a_pod("left", "ended", 3))
    assert sorted(stores.unfinished()) == [("ns", "ended"), ("ns", "goes-on")]
    stores.pods.store.forget("ns", "left", "left")
    assert stores.unfinished() == [("ns", "goes-on")]


def test_what_runs_have_used_and_cost_is_summed_for_the_metrics():
    stores = Stores()
    cost = {"unit": "accelerator", "seconds": {"training": 60.0, "lost": 4.0}, "currency": "USD"}
    losses = {"preemptions": 2, "history": [{"number": 1}]}
    priced = {**cost, "atLeast": 3.0, "amount": 3.0, "wasted": 1.0, "savedBySpot": 6.0}
    stores.runs.store.update(a_run("a", 1, cost=priced, disruptions=losses))
    stores.runs.store.update(a_run("b", 2, cost={**cost, "atLeast": 1.5}))
    stores.runs.store.update(a_run("c", 3))
    metrics = Metrics(lambda: stores.runs.store.summaries)

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"namespace": "ns", **labels})

    seconds = "trainingrun_accelerator_seconds"
    assert value(seconds, unit="accelerator", cause="training") == 120
    assert value(seconds, unit="accelerator", cause="lost") == 8
    assert value("trainingrun_cost", currency="USD", kind="spent") == 4.5
    assert value("trainingrun_cost", currency="USD", kind="saved_by_spot") == 6
    assert value("trainingrun_disruptions", kind="preemptions") == 2
    assert value("trainingrun_disruptions", kind="history") is None
