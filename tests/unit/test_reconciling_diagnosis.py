"""Bad input that only the cluster shows: a sentence with the value and what to do; nothing lost."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import (
    T0,
    a_head,
    a_pod,
    a_progress,
    a_ray_cluster,
    a_ray_job,
    a_run,
    at,
    pods,
)
from support.reconciled import (
    a_polled_run,
    a_training_run,
    condition,
    in_the_way,
    reconcile,
    then,
    wanting,
)
from support.simulation.cluster_faults import pods_hang_as_they_start
from support.simulation.story import Story
from trainingrun.reconciling import Observed, ReconcileSettings, plan
from trainingrun.reconciling.model import Apply, Delete
from trainingrun.rendering import RenderSettings
from trainingrun_protocol.progress import RunState

HEAD, ONE, TWO = pods()


def config_error(message: str) -> dict[str, Any]:
    return a_pod("worker-1", waiting=("CreateContainerConfigError", message))


@pytest.mark.parametrize(
    ("changes", "reason", "expected"),
    [
        pytest.param(
            {"pods": (config_error('secret "s3-credentials" not found'),)},
            "SecretMissing",
            ["s3-credentials", "team-a", "create it"],
            id="secret",
        ),
        pytest.param(
            {"pods": (config_error(f'secret "{a_ray_cluster()["metadata"]["name"]}" not found'),)},
            "RayTokenMissing",
            [a_ray_cluster()["metadata"]["name"], "KubeRay's operator", "training.rayAuth"],
            id="Ray's token",
        ),
        pytest.param(
            {"pods": (config_error('configmap "my-env" not found'),)},
            "ConfigMapMissing",
            ["my-env", "create it"],
            id="ConfigMap",
        ),
        pytest.param(
            {"pods": (config_error("couldn't find key PASSWORD in Secret team-a/db"),)},
            "KeyMissing",
            ["PASSWORD", "team-a/db"],
            id="key of a secret",
        ),
        pytest.param(
            {"pods": (a_pod(waiting=("ImagePullBackOff", "Back-off pulling image")),)},
            "ImageCannotBePulled",
            ["example.org/torch:1", "pull secret"],
            id="image",
        ),
        pytest.param(
            {"pods": (a_pod(waiting=("ErrImagePull", ""), image="example.org/sidecar:2"),)},
            "ImageCannotBePulled",
            ["Image example.org/sidecar:2 cannot be pulled"],
            id="image of another container",
        ),
        pytest.param(
            {"pods": (a_pod(waiting=("InvalidImageName", "")),)},
            "ImageCannotBePulled",
            ["example.org/torch:1"],
            id="image's name",
        ),
        pytest.param(
            {
                "pods": (
                    HEAD,
                    a_pod(
                        unschedulable="0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                        requests={"nvidia.com/gpu": "8", "cpu": "4"},
                    ),
                )
            },
            "Unschedulable",
            ["no node has enough nvidia.com/gpu (the pod requests 8) free"],
            id="no GPU free",
        ),
        pytest.param(
            {"pods": (HEAD, a_pod(unschedulable="0/3 nodes: 3 had untolerated taint {a: b}."))},
            "Unschedulable",
            ["untolerated taint"],
            id="taint",
        ),
        pytest.param(
            {"ray_clusters": (a_ray_cluster(failure='pods "x" is forbidden: exceeded quota: q'),)},
            "QuotaExceeded",
            ["exceeded quota: q", "raise it"],
            id="quota",
        ),
        pytest.param(
            {"ray_clusters": (a_ray_cluster(failure="admission webhook says no"),)},
            "PodsRefused",
            ["admission webhook says no"],
            id="webhook",
        ),
        pytest.param(
            {
                "pods": (
                    HEAD,
                    a_pod(
                        phase="Failed",
                        reason="OutOfnvidia.com/gpu",
                        message="Node didn't have enough resource: nvidia.com/gpu, requested: 8",
                    ),
                )
            },
            "PodsRefused",
            ["Node spot-1 refuses pod worker-1 (OutOfnvidia.com/gpu)", "requested: 8"],
            id="no GPU on the node",
        ),
        pytest.param(
            {"kuberay": "missing"}, "KubeRayMissing", ["install KubeRay 1.6"], id="no KubeRay"
        ),
        pytest.param(
            {"kuberay": "too-old"}, "KubeRayTooOld", ["HTTPMode", "upgrade"], id="old KubeRay"
        ),
    ],
)
def test_what_is_wrong_is_said_and_the_attempt_goes_on(
    training: Observed, changes: dict[str, Any], reason: str, expected: list[str]
) -> None:
    plan = reconcile(replace(training, **changes))
    found = in_the_way(plan)
    assert (found.status, found.reason) == ("True", reason)
    assert [word for word in expected if word not in found.message] == []
    assert plan.status.attempts[-1].outcome == "Running"
    assert plan.status.restarts == 0


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("ErrImagePull", 'failed to pull image "a": 429 Too Many Requests'),
        ("ErrImagePull", "failed to do request: net/http: TLS handshake timeout"),
        ("ImagePullBackOff", 'Back-off pulling image "a": ErrImagePull: pull QPS exceeded'),
        ("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the c"),
        ("CreateContainerError", "context deadline exceeded"),
    ],
)
def test_what_a_kubelet_tries_again_by_itself_is_stalled_only_where_it_goes_on(
    reason: str, message: str
) -> None:
    seen = begun({}, a_head(waiting=(reason, message), set_up=True))
    assert in_the_way(reconcile(seen, 60)).status == "False"
    assert in_the_way(reconcile(seen, 130)).status == "True"


def test_while_pods_start_the_status_says_which_are_ready_and_which_pull() -> None:
    pulls = a_pod("worker-1", waiting=("ContainerCreating", ""), set_up=True)
    pulls["status"]["conditions"][-1]["lastTransitionTime"] = at(7)
    seen = begun({}, a_head(ready=True, ready_at=5), pulls)
    assert condition(reconcile(seen, 900), "Ready").message == (
        f"1 of 3 pods are ready; pod worker-1 pulls its image since {at(7)}"
    )
    works = {"name": "wait", "state": {"running": {}}, "ready": False}
    pulls["status"]["initContainerStatuses"] = [works]
    assert condition(reconcile(seen, 900), "Ready").message == "1 of 3 pods are ready"


def test_once_all_pods_are_ready_the_status_says_what_the_driver_does() -> None:
    unread = begun({}, a_head(ready=True), *(a_pod(f"worker-{n}", ready=True) for n in (1, 2)))
    assert condition(reconcile(unread), "Ready").message == (
        "3 of 3 pods are ready; the driver starts"
    )
    for state in ("Starting", "Recovering"):
        starts = replace(unread, progress=a_progress(state=state, world_size=0))
        assert condition(reconcile(starts), "Ready").message == (
            "3 of 3 pods are ready; the worker group starts; trainingrun logs digits prints what "
            "it does"
        )
    shrunk = replace(unread, progress=a_progress(state="Training", world_size=1))
    assert condition(reconcile(shrunk), "Ready").message == ""


def test_once_it_is_mended_nothing_is_stalled(training: Observed) -> None:
    stalled = then(replace(training, pods=(config_error('secret "x" not found'), HEAD)), 60)
    repaired = in_the_way(reconcile(replace(stalled, pods=pods())))
    assert (repaired.status, repaired.message) == ("False", "")


SCRIPT = {"training": {"script": {"configMap": "my-code", "file": "fit.py"}}}
CLAIM = {"storage": {"uri": "pvc://runs/team-a"}}


def begun(spec: dict[str, Any], *pods: dict[str, Any]) -> Observed:
    """A run of that spec, whose first pods are these."""
    run, made = then(Observed(a_run(**spec)), 0), a_training_run()
    return replace(run, ray_jobs=made.ray_jobs, ray_clusters=made.ray_clusters, pods=pods)


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
@pytest.mark.parametrize(
    ("spec", "wanted", "words"),
    [
        pytest.param(SCRIPT, "ScriptNotMounted", ["my-code", "fit.py"], id="script"),
        pytest.param(
            CLAIM, "ClaimNotMounted", ["check that claim runs is ReadWriteMany"], id="claim"
        ),
    ],
)
def test_a_volume_that_is_not_mounted_for_long_is_said(
    reason: str, spec: dict[str, Any], wanted: str, words: list[str]
) -> None:
    seen = begun(spec, a_head(waiting=(reason, ""), set_up=False))
    assert in_the_way(reconcile(seen, 20)).status == "False"
    found = in_the_way(reconcile(seen, 40))
    assert found.reason == wanted
    assert [word for word in words if word not in found.message] == []


@pytest.mark.parametrize("spec", [SCRIPT, CLAIM, {}])
@pytest.mark.parametrize("set_up", [True, None])
def test_an_image_that_is_pulled_for_long_is_no_missing_volume(
    spec: dict[str, Any], set_up: bool | None
) -> None:
    """Its containers are waiting for the same reason. Of an old kubelet it is not known."""
    seen = begun(spec, a_head(waiting=("ContainerCreating", ""), set_up=set_up))
    assert in_the_way(reconcile(seen, 1200)).status == "False"


def test_what_else_a_pod_waits_for_before_its_image_is_pulled_is_said() -> None:
    seen = begun({}, a_head(waiting=("ContainerCreating", ""), set_up=False))
    assert in_the_way(reconcile(seen, 60)).status == "False"
    found = in_the_way(reconcile(seen, 70))
    assert found.reason == "PodNotSetUp"
    assert "kubectl describe pod digits-1-head -n team-a names" in found.message


def works(name: str = "wait-gcs-ready", since: float = 8, **status: Any) -> dict[str, Any]:
    """The status of an init container that runs since then."""
    return {"name": name, "state": {"running": {"startedAt": at(since)}}, "ready": False, **status}


def done(name: str = "load-data") -> dict[str, Any]:
    return {"name": name, "state": {"terminated": {"exitCode": 0}}, "ready": True}


def waits(name: str = "wait-gcs-ready", reason: str = "PodInitializing") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason}}, "ready": False}


def beside(sidecar: dict[str, Any], **pod: Any) -> dict[str, Any]:
    """A worker in which Ray's container has begun, beside another one."""
    found = a_pod(set_up=True, **pod)
    found["status"]["containerStatuses"] = [works("ray-worker"), sidecar]
    return found


def starting(
    *init_containers: dict[str, Any], name: str = "worker-1", **pod: Any
) -> dict[str, Any]:
    """A pod whose main container waits for these; `pod` as in `a_pod`."""
    role = "head" if name == "digits-1-head" else "worker"
    found = a_pod(name, role=role, waiting=("PodInitializing", ""), set_up=True, **pod)
    found["status"]["initContainerStatuses"] = list(init_containers)
    return found


def unseen(*, scheduled: bool = True) -> dict[str, Any]:
    """A pod that has its node, by a scheduler or its template, and whose kubelet does nothing."""
    found = a_pod("worker-1", phase="Pending")
    del found["status"]["containerStatuses"]
    if not scheduled:
        found["status"]["conditions"] = []
    return found


READY_HEAD = a_head(ready=True, ready_at=5)
LOG = "kubectl logs worker-1 -n team-a -c"


def before_the_driver(*pods: dict[str, Any], **spec: Any) -> Observed:
    """A run whose pods are these, and whose driver KubeRay has not submitted yet."""
    return replace(begun(spec, *pods), ray_jobs=(a_ray_job(deployment="Initializing"),))


@pytest.mark.parametrize(
    ("hung", "words"),
    [
        pytest.param(
            starting(works()),
            [f"init container wait-gcs-ready, which runs since {at(8)}", "port 6379", LOG],
            id="KubeRay's",
        ),
        pytest.param(
            starting(works("load-data"), waits()),
            [f"init container load-data, which runs since {at(8)}", f"see {LOG} load-data"],
            id="the user's",
        ),
        pytest.param(
            starting(works("proxy"), done(), works()), ["init container wait-gcs-ready"], id="last"
        ),
        pytest.param(
            starting(works("proxy", since=590, lastState={"terminated": {"exitCode": 1}})),
            ["init container proxy"],
            id="restarted",
        ),
        pytest.param(
            starting(waits("proxy", "CrashLoopBackOff")), ["waits (CrashLoopBackOff)"], id="crashes"
        ),
        pytest.param(
            a_pod(waiting=("ImageInspectError", "no such layer")),
            ["waits (ImageInspectError: no such layer); see kubectl describe pod worker-1"],
            id="another reason",
        ),
        pytest.param(
            unseen(),
            [f"has node spot-1 since {at(3)}", "check that kubelet: kubectl describe pod worker-1"],
            id="a kubelet that does nothing",
        ),
        pytest.param(
            unseen(scheduled=False),
            [f"has node spot-1 since {at(0)}"],
            id="the same, of no scheduler",
        ),
    ],
)
def test_a_pod_that_hangs_on_its_node_is_said_with_what_it_waits_in(
    hung: dict[str, Any], words: list[str]
) -> None:
    seen = before_the_driver(READY_HEAD, hung, TWO)
    assert in_the_way(reconcile(seen, 299)).status == "False"
    planned = reconcile(seen, 600)
    found = condition(planned, "Waiting")
    assert (found.status, found.reason) == ("True", "PodNotSetUp")
    assert [word for word in words if word not in found.message] == []
    assert (planned.status.attempts[-1].outcome, planned.actions) == ("Running", ())


@pytest.mark.parametrize(
    "worker",
    [
        pytest.param(starting(waits()), id="before its init containers"),
        pytest.param(starting(done()), id="after them"),
        pytest.param(starting(works("proxy", ready=True), waits()), id="beside a sidecar"),
        pytest.param(starting(works("proxy"), done()), id="beside one that is not ready"),
        pytest.param(starting(works(since=35_900)), id="until now"),
        pytest.param(beside(waits("proxy"), phase="Pending"), id="beside Ray"),
    ],
)
def test_a_pod_whose_image_is_pulled_for_hours_does_not_hang(worker: dict[str, Any]) -> None:
    seen = before_the_driver(READY_HEAD, worker, TWO)
    assert in_the_way(reconcile(seen, 36_000)).status == "False"


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(a_head(waiting=("ContainerCreating", ""), set_up=True), id="pulls its image"),
        pytest.param(a_head(ready=False), id="is not ready"),
        pytest.param(a_head(ready=True, ready_at=35_800), id="is ready for a while"),
    ],
)
@pytest.mark.parametrize("worker", [starting(works()), unseen()])
def test_a_worker_does_not_hang_that_waits_for_a_head(
    head: dict[str, Any], worker: dict[str, Any]
) -> None:
    seen = before_the_driver(head, worker, TWO)
    assert in_the_way(reconcile(seen, 36_000)).status == "False"


def test_while_the_head_has_no_node_that_alone_is_said_and_of_a_queued_run_that_it_is() -> None:
    seen = before_the_driver(a_head(unschedulable="0/3 nodes"), starting(works()), TWO)
    assert in_the_way(reconcile(seen, 36_000)).reason == "Unschedulable"
    queued = replace(seen, ray_jobs=(a_ray_job(queued=True),))
    assert in_the_way(reconcile(queued, 36_000)).reason == "Queued"


def test_a_head_that_hangs_is_said_and_not_the_workers_that_wait_for_it() -> None:
    head = starting(works("load-data"), name="digits-1-head", node="base-1")
    found = in_the_way(reconcile(before_the_driver(head, starting(works()), TWO), 400))
    assert (
        f"Pod digits-1-head waits for its init container load-data, which runs since {at(8)}"
        in (found.message)
    )


def test_a_head_in_which_ray_never_is_ready_is_said() -> None:
    """Its probe is the user's own: KubeRay's would end it."""
    head, ray = a_head(ready=False, ready_at=0), works("ray-head", since=20)
    head["status"]["containerStatuses"] = [ray]
    seen = before_the_driver(head, starting(works()), TWO)
    assert in_the_way(reconcile(seen, 310)).status == "False"
    found = in_the_way(reconcile(seen, 330))
    assert found.reason == "PodNotReady"
    assert "Pod digits-1-head runs and container ray-head of it is not ready" in found.message
    ready = a_head(ready=True, ready_at=321)
    ready["status"]["containerStatuses"] = [{**ray, "ready": True}]
    assert in_the_way(reconcile(replace(seen, pods=(ready, ONE, TWO)), 330)).status == "False"


def test_a_replacement_that_hangs_in_mid_run_is_said_until_it_or_the_run_is_to_go() -> None:
    before = then(a_polled_run(), 100)
    hung = starting(works(since=110), name="worker-9", node="spot-3", created_at=105)
    recovers = replace(
        before, pods=(READY_HEAD, ONE, hung), progress=a_progress(state="Recovering")
    )
    recovering = then(recovers, 120)
    planned = reconcile(recovering, 3600)
    assert (planned.status.phase, in_the_way(planned).reason) == ("Recovering", "PodNotSetUp")
    assert "Pod worker-9" in in_the_way(planned).message
    assert planned.status.attempts[-1].outcome == "Running"
    leaves = {**hung, "metadata": {**hung["metadata"], "deletionTimestamp": at(3601)}}
    deleted = replace(recovering, pods=(READY_HEAD, ONE, leaves))
    assert in_the_way(reconcile(deleted, 3600)).status == "False"
    suspended = wanting(recovering, suspend=True)
    assert in_the_way(reconcile(suspended, 3600)).status == "False"
    elastic = wanting(recovering, workers={"count": 2, "minimum": 1})
    fewer = replace(elastic, progress=a_progress(world_size=1))
    assert "1 of 2 workers train; Pod worker-9" in in_the_way(reconcile(fewer, 3600)).message


@pytest.mark.parametrize("choice", [0, 1, 2])
@pytest.mark.parametrize(("trained_s", "phase"), [(0, "Starting"), (60, "Recovering")])
def test_once_pods_that_hung_for_hours_start_the_run_succeeds(
    choice: int, trained_s: float, phase: str
) -> None:
    """The story's invariants ask for a sentence where nothing moves."""
    story = Story(groups=("stuck",))
    story.wait(trained_s)
    pods_hang_as_they_start(story, choice)
    assert story.status["phase"] == phase
    story.end()
    assert (story.status["phase"], story.status.get("restarts", 0)) == ("Succeeded", 0)


def test_a_sidecar_that_crashes_in_mid_run_keeps_nothing_from_training() -> None:
    crashes = beside(waits("proxy", "CrashLoopBackOff"))
    seen = replace(a_polled_run(), pods=(READY_HEAD, crashes, TWO))
    assert in_the_way(reconcile(seen, 3600)).status == "False"


def test_a_scheduler_that_does_not_exist_is_said(training: Observed) -> None:
    """Such a pod has no condition, and no event tells that nobody looks at it."""
    created_at = (training_age := 3600) - 30
    pending = a_pod("worker-1", node=None, phase="Pending", created_at=created_at)
    pending["status"]["conditions"] = []
    seen = replace(training, pods=(HEAD, pending, TWO))
    assert in_the_way(reconcile(seen, training_age)).status == "False"
    found = in_the_way(reconcile(seen, training_age + 31))
    assert found.reason == "Unschedulable"
    assert "No scheduler has looked at pod worker-1" in found.message


@pytest.mark.parametrize("kuberay", ["missing", "too-old"])
def test_without_kuberay_nothing_is_created_and_it_is_checked_again(kuberay: Any) -> None:
    plan = reconcile(Observed(a_run(), kuberay=kuberay))
    assert (plan.actions, plan.requeue_after_s, plan.status.phase) == ((), 30.0, "Pending")
    assert in_the_way(plan).status == "True"
    begins = reconcile(then(Observed(a_run(), kuberay=kuberay), 0, kuberay="ok"))
    assert isinstance(begins.actions[-1], Apply)


def test_an_invalid_spec_is_not_accepted_and_whatever_runs_is_left_alone(
    training: Observed,
) -> None:
    expected = "workers.count: must be at least 1"
    plan = reconcile(replace(training, invalid=expected))
    found = condition(plan, "Accepted")
    assert (found.status, found.message, plan.actions) == ("False", expected, ())
    assert plan.status.attempts == training.run.status.attempts
    fresh = reconcile(Observed(a_run(), invalid=expected))
    assert (fresh.status.phase, fresh.actions, fresh.status.attempts) == ("Pending", (), [])


def test_edits_in_mid_run_are_taken_note_of(training: Observed) -> None:
    edited = wanting(training, checkpoints={"everySeconds": 10})
    run = edited.run
    meta = run.metadata.model_copy(update={"generation": 2})
    plan = reconcile(replace(edited, run=run.model_copy(update={"metadata": meta})))
    assert plan.status.observed_generation == 2
    assert plan.actions == ()


def test_a_run_in_the_operators_own_namespace_is_refused_and_never_begun():
    """Its pods could mount the operator's key and take its service account."""
    planned = plan(
        Observed(a_run()), RenderSettings(operator_namespace="team-a"), ReconcileSettings(), T0
    )
    accepted = condition(planned, "Accepted")
    assert (accepted.status, accepted.reason) == ("False", "InOperatorNamespace")
    assert "team-a" in accepted.message
    assert "create the run in another namespace" in accepted.message
    assert planned.actions == ()
    assert planned.status.attempt == 0


def test_an_attempt_that_runs_in_the_operators_namespace_since_an_older_version_is_not_ended():
    training = a_training_run()
    settings = RenderSettings(operator_namespace="team-a")
    planned = plan(training, settings, ReconcileSettings(), T0 + timedelta(seconds=60))
    assert not [action for action in planned.actions if isinstance(action, Delete)]
    assert planned.status.attempts[-1].outcome == "Running"


def test_ranks_that_wait_for_others_are_said_while_they_do(training: Observed) -> None:
    reported = "rank 0 waits in ray.train.report for over 30 s for rank 1, which is elsewhere"
    observed = replace(training, progress=a_progress(standstill=reported))
    plan = reconcile(observed)
    found = in_the_way(plan)
    assert (found.status, found.reason, found.message) == ("True", "RanksWait", reported)
    assert (plan.status.attempts[-1].outcome, plan.actions) == ("Running", ())
    moving = replace(observed, progress=a_progress())
    assert in_the_way(reconcile(moving)).status == "False"


def test_storage_that_does_not_answer_is_said_while_the_attempt_runs(training: Observed) -> None:
    reported = "The bucket runs at https://s3.example.org does not answer: timed out"
    observed = replace(
        training, progress=a_progress(storage_error=reported, storage_error_since=1.0)
    )
    plan = reconcile(observed)
    found = in_the_way(plan)
    assert (found.status, found.reason) == ("True", "StorageUnavailable")
    assert found.message == f"{reported}; training continues, uploads and commits wait"
    assert (plan.status.attempts[-1].outcome, plan.status.phase) == ("Running", "Running")
    assert in_the_way(reconcile(replace(observed, progress=a_progress()))).status == "False"


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.RECOVERING])
def test_no_training_is_said_to_continue_that_waits_for_its_storage(
    training: Observed, state: RunState
) -> None:
    waits = a_progress(state=state, storage_error="The bucket does not answer")
    found = in_the_way(reconcile(replace(training, progress=waits)))
    assert found.message == "The bucket does not answer; training waits for it"
