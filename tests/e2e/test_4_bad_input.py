"""What only a real cluster can refuse: each wrong run says in one sentence what is wrong.

The runs need no training, so all of them are created at once, in a namespace that admits nothing
but restricted pods. What a driver says without a cluster is in tests/local/test_driver_start.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from e2e import cluster as clusters
from e2e.cluster import TestCluster
from e2e.diagnosing import keep_evidence
from e2e.kube import wait_for
from e2e.runs import Run, specification
from trainingrun_protocol.contract import STORAGE_PATIENCE_ENV

NAMESPACE = "e2e-bad"


@dataclass(frozen=True)
class Bad:
    """A spec that cannot work."""

    says: str
    """Regular expression for the sentence in one of the conditions."""
    fails: bool
    """Whether the run ends; otherwise it waits for the user to put right what is missing."""
    training: dict[str, Any] = field(default_factory=dict)
    storage: dict[str, Any] = field(default_factory=dict)
    workers: dict[str, Any] = field(default_factory=dict)
    image: str = clusters.TRAINING_IMAGE


# What waiting rarely heals is waited for all the same; a test need not wait as long.
IMPATIENT = {
    "function": "trainingrun_runtime.examples.digits:train",
    "env": [{"name": STORAGE_PATIENCE_ENV, "value": "10"}],
}
CASES = {
    "missing-secret": Bad(
        r"Secret not-there does not exist .*; create it", fails=False,
        storage={"credentialsSecret": "not-there"}
    ),
    "image-not-pulled": Bad(
        r"Image registry\.invalid/none:1 cannot be pulled .*pull secret", fails=False,
        image="registry.invalid/none:1"
    ),
    "image-not-ours": Bad(
        r"pods of spec\.head ended before the training began.*trainingrun-node", fails=True,
        image=clusters.STORAGE_IMAGE
    ),
    "unschedulable": Bad(
        r"no node has enough cpu \(the pod requests 500\)", fails=False,
        workers={"resources": {"cpu": "500"}}
    ),
    # json.loads gets a dict, and raises.
    "function-raises": Bad(
        r"rank 0 raised TypeError: .* must be str, bytes or bytearray", fails=True,
        training={"function": "json:loads"},
    ),
    "wrong-credentials": Bad(
        r"credentials .* were refused .*storage\.credentialsSecret", fails=True,
        training=IMPATIENT, storage={"credentialsSecret": "wrong-credentials"},
    ),
    "bucket-unreachable": Bad(
        r"s3\.nowhere\S* cannot be reached; .*storage\.endpoint", fails=False,
        storage={"endpoint": "http://s3.nowhere.svc.cluster.local:7070"},
    ),
    "bucket-missing": Bad(
        r"s3://no-such-bucket\S* .*does not exist; .*storage\.uri", fails=True,
        training=IMPATIENT, storage={"uri": "s3://no-such-bucket/e2e"},
    ),
    "restore-unknown-run": Bad(
        r"restoreFrom\.run is nobody, and namespace e2e-bad has no TrainingRun", fails=False,
        storage={"restoreFrom": {"run": "nobody"}},
    ),
    "restore-no-checkpoint": Bad(
        r"there is no checkpoint in s3://runs/e2e/nobody-0 .*name a run's own folder", fails=True,
        storage={"restoreFrom": {"uri": "s3://runs/e2e/nobody-0"}},
    ),
}  # fmt: skip


def spec_of(bad: Bad) -> dict[str, Any]:
    spec = specification(image=bad.image)
    failures = {"maxRestarts": 0, "maxAttemptsWithoutProgress": 1}
    workers = {"count": 1, "resources": {"cpu": "1", "memory": "1Gi"}, **bad.workers}
    if not bad.workers:
        workers["podTemplate"] = spec["workers"]["podTemplate"]
    return {
        **spec,
        "training": bad.training or {"function": "trainingrun_runtime.examples.digits:train"},
        "workers": workers,
        "storage": {**spec["storage"], **bad.storage},
        "failures": failures,
    }


@pytest.fixture(scope="module")
def restricted(operated: TestCluster) -> clusters.Kubectl:
    """A namespace that admits restricted pods only, with a Secret of wrong keys."""
    # A live source is a hostPath, which is nothing for a restricted pod.
    kubectl = clusters.namespace(operated, NAMESPACE, restricted=not clusters.LIVE_SOURCE)
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "wrong-credentials"},
            "stringData": {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing"},
        }
    )
    return kubectl


@pytest.fixture(scope="module")
def bad_runs(
    request: pytest.FixtureRequest, operated: TestCluster, restricted: clusters.Kubectl
) -> Iterator[dict[str, Run]]:
    """The runs of all selected cases, created at once."""
    chosen = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    runs = {case: Run(operated, restricted, case) for case in chosen}
    for case, run in runs.items():
        run.start(spec_of(CASES[case]), journal=False)
    yield runs
    for run in runs.values():
        run.remove()


@pytest.mark.parametrize("case", CASES)
def test_the_conditions_say_what_is_wrong(case: str, bad_runs: dict[str, Run]):
    run, bad = bad_runs[case], CASES[case]
    try:
        if bad.fails:
            said = run.wait_for_condition("Failed", timeout=480)["message"]
        else:
            said = wait_for(
                f"a condition of {case} that matches {bad.says}",
                lambda: sentence(run, bad.says),
                timeout=120,
                instead=run.sentence,
                every=1,
            )
        assert re.search(bad.says, said), said
        assert "Traceback" not in said
        assert "\n" not in said.strip()
        assert "nothing" not in said, "a secret key in a message"
        print(f"\n  {case}: {said}")
        if not bad.fails:
            assert not run.holds("Failed")
            assert run.status()["phase"] in ("Pending", "Starting")
    except AssertionError:
        keep_evidence(run.cluster, run.kubectl, f"bad-{case}")
        raise
    finally:
        run.remove()  # the others get its share of the machine


def sentence(run: Run, pattern: str) -> str | None:
    """The message of a condition that matches."""
    messages = [entry.get("message", "") for entry in run.conditions().values()]
    return next((said for said in messages if re.search(pattern, said)), None)


def test_a_run_created_again_under_its_name_starts_anew(
    operated: TestCluster, restricted: clusters.Kubectl
):
    run = Run(operated, restricted, "again")
    spec = specification()
    quick = {"steps": 30, "step_seconds": 0.1}
    run.start(
        {**spec, "training": {**spec["training"], "config": {**quick, "steps": 10000}}},
        journal=False,
    )
    wait_for(
        "a checkpoint of the first run",
        lambda: run.status().get("checkpoint"),
        timeout=180,
        instead=run.sentence,
        every=1,
    )
    former = run.folder()

    # Not waited for: the former run's pods may still be there when the new one is created.
    run.kubectl.delete("trainingrun", run.name, wait=True)
    run.kubectl.apply(
        {
            "apiVersion": "trainingrun.dev/v1alpha1",
            "kind": "TrainingRun",
            "metadata": {"name": run.name},
            "spec": {**spec, "training": {**spec["training"], "config": quick}},
        }
    )
    status = run.succeed()

    assert run.folder() != former
    assert status["progress"]["step"] == quick["steps"]
    assert [attempt.get("resumedFromStep") for attempt in status["attempts"]] == [0]
    run.remove()
