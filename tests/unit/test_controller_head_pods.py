"""Which pod is polled for a run's progress: its own head, by the chain of owners."""

import pytest

from trainingrun.cluster.run_stores import projection
from trainingrun.controller.progress_polling import head_of

RUN = {"kind": "TrainingRun", "uid": "u"}
JOB = {"kind": "RayJob", "uid": "j"}
CLUSTER = {"kind": "RayCluster", "uid": "c"}


def owned(uid: str, owner: dict | None, controller: bool = True, **fields) -> dict:
    references = [owner | {"name": "n", "controller": controller}] if owner else []
    return {"metadata": {"uid": uid, "ownerReferences": references, **fields}}


def a_head(
    uid: str = "p",
    owner: dict | None = CLUSTER,
    address: str = "10.0.0.7",
    name: str = "head",
    **fields,
):
    labels = {
        "trainingrun.dev/run-uid": "u",
        "trainingrun.dev/attempt": "1",
        "trainingrun.dev/role": "head",
    }
    status = {"podIP": address, "phase": "Running"}
    return owned(uid, owner, labels=labels, name=name, **fields) | {"status": status}


def a_cluster(owner: dict | None = JOB, head: str = "head", **address: str):
    return owned("c", owner) | {"status": {"head": {"podName": head, **address}}}


def polled(*pods, uid="u", attempt=1, clusters=None, jobs=None):
    clusters = [a_cluster()] if clusters is None else clusters
    jobs = [owned("j", RUN)] if jobs is None else jobs
    found = head_of(pods, clusters, jobs, uid, attempt)
    kept = head_of(
        [projection("Pod")(pod) for pod in pods],
        [projection("RayCluster")(cluster) for cluster in clusters],
        [projection("RayJob")(job) for job in jobs],
        uid,
        attempt,
    )
    assert kept == found, "a field is read that cluster/run_stores.py does not keep"
    return found


def test_the_head_is_polled_at_its_own_address():
    assert polled(a_head()).url == "http://10.0.0.7:8484"
    assert polled(a_head(address="fd00::1")).url == "http://[fd00::1]:8484"


@pytest.mark.parametrize(
    ("uid", "attempt"),
    [pytest.param("another", 1, id="another run"), pytest.param("u", 2, id="another attempt")],
)
def test_another_run_s_or_attempt_s_head_is_not_polled(uid, attempt):
    assert polled(a_head(), uid=uid, attempt=attempt) is None


def test_a_head_that_is_leaving_is_still_polled_unless_a_new_one_is_there():
    terminating = a_head("old", deletionTimestamp="2026-01-01T00:00:00Z")
    assert polled(terminating).pod_uid == "old"
    assert polled(terminating, a_head("new")).pod_uid == "new"


def test_a_pod_that_only_carries_the_labels_of_a_head_is_never_polled():
    assert polled(a_head("forged", owner=None)) is None
    assert polled(a_head("forged", owner=CLUSTER | {"uid": "elsewhere"})) is None
    assert polled(a_head("forged", owner=None), a_head("real")).pod_uid == "real"


def test_a_ray_cluster_or_ray_job_of_somebody_else_makes_no_head():
    assert polled(a_head(), clusters=[a_cluster(None)]) is None
    assert polled(a_head(), clusters=[a_cluster(JOB | {"uid": "elsewhere"})]) is None
    assert polled(a_head(), jobs=[owned("j", RUN | {"uid": "another"})]) is None
    assert polled(a_head(), jobs=[owned("j", RUN, controller=False)]) is None


def test_a_pod_that_names_the_run_s_ray_cluster_as_its_owner_is_never_sent_the_token():
    """An owner reference is written by whoever creates the pod; KubeRay's status is not."""
    forged = a_head("forged", name="another", address="10.0.0.66")
    assert polled(forged) is None
    assert polled(forged, a_head("real")).pod_uid == "real"
    assert polled(forged, clusters=[owned("c", JOB)]) is None


def test_a_pod_that_has_taken_the_name_of_a_head_that_is_gone_is_not_polled():
    named = [a_cluster(podIP="10.0.0.7")]
    assert polled(a_head("forged", address="10.0.0.66"), clusters=named) is None
    assert polled(a_head("real"), clusters=named).pod_uid == "real"
