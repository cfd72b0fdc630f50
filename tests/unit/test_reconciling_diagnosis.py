"""Bad input that only the cluster shows: a sentence with the value and what to do; nothing lost."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import T0, a_head, a_pod, a_progress, a_ray_cluster, a_run, at, pods
from support.reconciled import a_training_run, condition, in_the_way, reconcile, then, wanting
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
