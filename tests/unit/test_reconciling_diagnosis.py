"""Bad input that only the cluster shows: a sentence with the value and what to do; nothing lost."""

from dataclasses import replace
from typing import Any

import pytest

from support.builders import a_head, a_pod, a_ray_cluster, a_run, pods
from support.reconciled import a_training_run, condition, look, then, wanting
from trainingrun.reconciling import Observed
from trainingrun.reconciling.model import Apply, EnsureToken
from trainingrun.rendering.names import token_secret_name

HEAD, ONE, TWO = pods()


@pytest.fixture
def training() -> Observed:
    return a_training_run()


def config_error(message: str) -> dict[str, Any]:
    return a_pod("worker-1", waiting=("CreateContainerConfigError", message))


@pytest.mark.parametrize(
    ("changes", "reason", "words"),
    [
        (
            {"pods": (config_error('secret "s3-credentials" not found'),)},
            "SecretMissing",
            ["s3-credentials", "team-a", "create it"],
        ),
        (
            {"pods": (config_error('configmap "my-env" not found'),)},
            "ConfigMapMissing",
            ["my-env", "create it"],
        ),
        (
            {"pods": (config_error("couldn't find key PASSWORD in Secret team-a/db"),)},
            "KeyMissing",
            ["PASSWORD", "team-a/db"],
        ),
        (
            {"pods": (a_pod(waiting=("ImagePullBackOff", "Back-off pulling image")),)},
            "ImageCannotBePulled",
            ["example.org/torch:1", "pull secret"],
        ),
        (
            {"pods": (a_pod(waiting=("InvalidImageName", "")),)},
            "ImageCannotBePulled",
            ["example.org/torch:1"],
        ),
        (
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
            ["no node has enough nvidia.com/gpu (the pod asks for 8) free"],
        ),
        (
            {"pods": (HEAD, a_pod(unschedulable="0/3 nodes: 3 had untolerated taint {a: b}."))},
            "Unschedulable",
            ["untolerated taint"],
        ),
        (
            {"ray_clusters": (a_ray_cluster(failure='pods "x" is forbidden: exceeded quota: q'),)},
            "QuotaExceeded",
            ["exceeded quota: q", "raise it"],
        ),
        (
            {"ray_clusters": (a_ray_cluster(failure="admission webhook says no"),)},
            "PodsRefused",
            ["admission webhook says no"],
        ),
        ({"kuberay": "missing"}, "KubeRayMissing", ["install KubeRay 1.6"]),
        ({"kuberay": "too-old"}, "KubeRayTooOld", ["HTTPMode", "upgrade"]),
    ],
)
def test_what_is_wrong_is_said_and_the_attempt_goes_on(
    training: Observed, changes: dict[str, Any], reason: str, words: list[str]
) -> None:
    plan = look(replace(training, **changes))
    found = condition(plan, "Stalled")
    assert (found.status, found.reason) == ("True", reason)
    assert [word for word in words if word not in found.message] == []
    assert plan.status.attempts[-1].outcome == "Running"
    assert plan.status.restarts == 0


def test_once_it_is_mended_nothing_is_stalled(training: Observed) -> None:
    stalled = then(replace(training, pods=(config_error('secret "x" not found'), HEAD)), 60)
    mended = condition(look(replace(stalled, pods=pods())), "Stalled")
    assert (mended.status, mended.message) == ("False", "")


def test_our_own_token_is_made_again_and_not_asked_of_the_user(training: Observed) -> None:
    own = token_secret_name(training.run)
    lacking = a_head(waiting=("CreateContainerConfigError", f'secret "{own}" not found'))
    plan = look(replace(training, pods=(lacking, ONE, TWO)), 5)
    assert [type(action) for action in plan.actions] == [EnsureToken]
    assert condition(plan, "Stalled").status == "False"


def test_a_script_s_missing_config_map_is_guessed_from_a_mount_that_takes_too_long() -> None:
    script = {"script": {"configMap": "my-code", "file": "fit.py"}}
    creating = a_head(waiting=("ContainerCreating", ""))
    begun = then(Observed(a_run(training=script)), 0)
    seen = replace(begun, ray_jobs=a_training_run().ray_jobs, pods=(creating,))
    assert condition(look(seen, 20), "Stalled").status == "False"
    found = condition(look(seen, 40), "Stalled")
    assert found.reason == "ScriptNotMounted"
    assert "my-code" in found.message
    assert "fit.py" in found.message


@pytest.mark.parametrize("kuberay", ["missing", "too-old"])
def test_without_kuberay_nothing_is_created_and_it_is_looked_for_again(kuberay: Any) -> None:
    plan = look(Observed(a_run(), kuberay=kuberay))
    assert (plan.actions, plan.look_again_s, plan.status.phase) == ((), 30.0, "Pending")
    assert condition(plan, "Stalled").status == "True"
    begins = look(then(Observed(a_run(), kuberay=kuberay), 0, kuberay="ok"))
    assert isinstance(begins.actions[-1], Apply)


def test_a_rejected_ray_job_is_not_accepted_and_not_tried_in_a_loop() -> None:
    words = "RayJob.ray.io is invalid: spec.x: must be y"
    plan = look(Observed(a_run(), rejected=words))
    found = condition(plan, "Accepted")
    assert (found.status, found.reason) == ("False", "Rejected")
    assert words in found.message
    assert (plan.actions, plan.look_again_s) == ((), 30.0)


def test_a_quota_that_refuses_the_ray_job_stalls_an_accepted_run() -> None:
    plan = look(Observed(a_run(), rejected="rayjobs is forbidden: exceeded quota: objects"))
    assert condition(plan, "Accepted").status == "True"
    assert condition(plan, "Stalled").reason == "QuotaExceeded"


def test_an_invalid_spec_is_not_accepted_and_whatever_runs_is_left_alone(
    training: Observed,
) -> None:
    words = "workers.count: must be at least 1"
    plan = look(replace(training, invalid=words))
    found = condition(plan, "Accepted")
    assert (found.status, found.message, plan.actions) == ("False", words, ())
    assert plan.status.attempts == training.run.status.attempts
    fresh = look(Observed(a_run(), invalid=words))
    assert (fresh.status.phase, fresh.actions, fresh.status.attempts) == ("Pending", (), [])


def test_edits_in_mid_run_are_taken_note_of(training: Observed) -> None:
    edited = wanting(training, checkpoints={"everySeconds": 10})
    run = edited.run
    meta = run.metadata.model_copy(update={"generation": 2})
    plan = look(replace(edited, run=run.model_copy(update={"metadata": meta})))
    assert plan.status.observed_generation == 2
    assert plan.actions == ()
