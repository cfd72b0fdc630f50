"""What newcomers meet in pods, done for real: the status says what is wrong and what to do.

What needs no pod is in tests/local/test_newcomers.py. The runs come one after the other: some of
them fill the memory of their pod.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import TestCluster
from e2e.diagnosing import keep_evidence
from e2e.kube import wait_for
from e2e.runs import BURST, Run, specification

SCRIPT = Path(__file__).parents[1] / "newcomers_train.py"
NAME = "newcomers"


@dataclass(frozen=True)
class Case:
    """What is done, and what the status says then."""

    says: str
    """Regular expression for a sentence of the status."""
    ends: str | None = "Failed"
    """The condition with which the run ends; None: it goes on, and a condition or event says it."""
    workers: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


CASES = {
    "shared_memory_too_small": Case(
        r"raise workers\.resources\.sharedMemory, or lower num_workers",
        workers={"resources": {"cpu": "1", "memory": "2Gi", "sharedMemory": "160Mi"}},
    ),
    # Ray writes to the disk what its store does not hold, unless that is nearly full.
    "object_store_full": Case(
        r"free the disk, or give the pods more ephemeral-storage in podTemplate",
        env={"RAY_local_fs_capacity_threshold": "0.01"},
    ),
    "killed_for_memory": Case(
        r"raise workers\.resources\.memory, or make the batch smaller and accumulate gradients",
        workers={"resources": {"cpu": "1", "memory": "1Gi"}},
    ),
    "reads_its_result": Case(r"The training is done", ends="Succeeded"),
    "slow_rank": Case(
        r"rank 1 on node \S+ is slow: .* times the others' median",
        ends=None,
        workers={"count": 2},
    ),
    "no_gpu_in_the_cluster": Case(
        r"no node has enough .*nvidia\.com/gpu",
        ends=None,
        workers={"accelerator": {"kind": "nvidia", "count": 1}},
    ),
}


def spec_of(name: str, case: Case) -> dict[str, Any]:
    spec = specification()
    workers = {**spec["workers"], "count": 1, **case.workers}
    workers["podTemplate"] = {"spec": {"containers": [{"name": "ray-worker", "resources": BURST}]}}
    training = {
        "script": {"configMap": NAME, "file": SCRIPT.name},
        "config": {"case": name, "workers": workers["count"]},
        "env": [{"name": key, "value": value} for key, value in case.env.items()],
    }
    failures = {"maxRestarts": 0, "maxAttemptsWithoutProgress": 1}
    return {**spec, "training": training, "workers": workers, "failures": failures}


@pytest.fixture(scope="module", autouse=True)
def script(operated: TestCluster) -> None:
    """The script in a ConfigMap."""
    operated.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": NAME},
            "data": {SCRIPT.name: SCRIPT.read_text()},
        }
    )


@pytest.mark.parametrize("name", CASES)
def test_the_status_says_what_to_do(name: str, operated: TestCluster) -> None:
    case = CASES[name]
    run = Run(operated, operated.kubectl, name.replace("_", "-"))
    run.start(spec_of(name, case), journal=False)
    try:
        if case.ends is not None:
            said = run.wait_for_condition(case.ends, timeout=420)["message"]
        else:
            said = wait_for(
                f"a condition or event of {name} that matches {case.says}",
                lambda: sentence_that_matches(run, case.says),
                timeout=240,
                instead=run.sentence,
                every=1,
            )
        assert re.search(case.says, said), said
        assert "Traceback" not in said
        assert "\n" not in said.strip()
        print(f"\n  {name}: {said}")
        assert run.holds("Failed") is (case.ends == "Failed")
    except AssertionError:
        keep_evidence(run.cluster, run.kubectl, f"newcomer-{run.name}")
        raise
    finally:
        run.remove()


def sentence_that_matches(run: Run, pattern: str) -> str | None:
    """The message of a condition, or an event, that matches, unless the run has failed."""
    run.fail_if_over("Failed")
    messages = [entry.get("message", "") for entry in run.conditions().values()] + run.events()
    return next((said for said in messages if re.search(pattern, said)), None)
