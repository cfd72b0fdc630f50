"""The stores of the kinds of a run: which runs are not done yet."""

from support.builders import an_object
from trainingrun.cluster.run_stores import Stores


def a_run(name: str, version: int, **status) -> dict:
    return an_object(name, version, uid=name, spec={}, status=status)


def a_pod(name: str, run: str, version: int) -> dict:
    metadata = {"labels": {"trainingrun.dev/run": run}}
    return an_object(name, version, uid=name, metadata=metadata, spec={})


def test_an_ended_run_is_unfinished_while_something_of_it_is_left():
    stores = Stores()
    stores.runs.store.saw(a_run("goes-on", 1))
    stores.runs.store.saw(a_run("ended", 2, completionTime="2026-01-01T00:00:00Z"))
    stores.pods.store.saw(a_pod("left", "ended", 3))
    assert sorted(stores.unfinished()) == [("ns", "ended"), ("ns", "goes-on")]
    stores.pods.store.forget("ns", "left", "left")
    assert stores.unfinished() == [("ns", "goes-on")]
