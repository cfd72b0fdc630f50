"""The pods of a run that ended badly are gone: the command line still tells which rank and why."""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.cluster import TestCluster
from e2e.command_line import trainingrun, with_bucket
from e2e.diagnosing import keep_evidence
from e2e.runs import BURST, Run, specification

SCRIPT = Path(__file__).parents[1] / "afterwards_train.py"
NAME = "afterwards"


@dataclass(frozen=True)
class Case:
    """What is said of a run that ended in some way."""

    says: str
    """Regular expression for the cause, in the status and on the page."""
    memory: str = "2Gi"
    step: int = 5
    """After which it ends badly."""


CASES = {
    "crash": Case(r"ValueError: sample 7 has no label"),
    "hang": Case(r"rank 1 has been in hang \(afterwards_train\.py:\d+\)"),
    # The kernel may end the process alone, and not the container: then its counter says so.
    "run-out-of-memory": Case(
        r"used more memory than its limit; raise workers\.resources\.memory", memory="1Gi", step=0
    ),
}


@pytest.fixture(scope="module", autouse=True)
def script(operated: TestCluster) -> None:
    """The script in a ConfigMap."""
    data = {SCRIPT.name: SCRIPT.read_text()}
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": data}
    operated.kubectl.apply(manifest)


@pytest.mark.parametrize("how", CASES)
def test_the_rank_and_the_cause_are_told_after_the_pods_are_gone(
    how: str, operated: TestCluster, tmp_path: Path
) -> None:
    case, kubectl = CASES[how], operated.kubectl
    spec = specification()
    spec["workers"]["resources"] = {**spec["workers"]["resources"], "memory": case.memory}
    spec["workers"]["podTemplate"] = {
        "spec": {"containers": [{"name": "ray-worker", "resources": BURST}]}
    }
    spec["training"] = {
        "script": {"configMap": NAME, "file": SCRIPT.name},
        "config": {"how": how.replace("-", "_"), "step": case.step},
    }
    spec["failures"] = {
        "maxRestarts": 0,
        "maxHangs": 0,
        "maxAttemptsWithoutProgress": 1,
        "hang": {"afterSeconds": 20},
    }
    run = Run(operated, kubectl, how)
    run.start(spec, journal=False)
    try:
        said = run.wait_for_condition("Failed", timeout=600)["message"]
        print(f"\n  {how}: {said}")
        assert re.search(case.says, said), said
        run.wait_until_freed()

        printed = with_bucket(kubectl, tmp_path, "logs", how)
        assert "[rank 1] rank 1 reads shard-0007\n" in printed
        assert "(RayTrainWorker" not in printed, "the driver's lines have no rank's once more"
        assert re.search(case.says, printed)
        if how == "crash":  # else the operator ends its driver, which names no rank then
            assert printed.startswith("==> rank 1 failed first: ")
        page = tmp_path / "page.html"
        with_bucket(kubectl, tmp_path, "report", how, "--html", f"--to={page}")
        text = page.read_text()
        assert re.search(r"rank 1\b", text)
        assert re.search(case.says, text)
        assert re.search(case.says, trainingrun(kubectl, "cost", how, COLUMNS="1000"))
        if how == "hang":
            stacks = with_bucket(kubectl, tmp_path, "stacks", how, "--rank=1")
            assert "afterwards_train.py" in stacks
    except AssertionError:
        keep_evidence(operated, kubectl, f"afterwards-{how}")
        raise
    finally:
        run.remove()
