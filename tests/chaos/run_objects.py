"""What happens to the objects of a run, and to the run itself."""

from collections.abc import Iterator
from contextlib import contextmanager

from e2e.runs import CHECKPOINT_SECONDS, Run

from .acting import of_run


@contextmanager
def ray_cluster_deleted(run: Run) -> Iterator[None]:
    """Somebody deletes the attempt's RayCluster."""
    run.kubectl("delete", "rayclusters", "--wait=false", f"--selector={of_run(run)}")
    yield


@contextmanager
def ray_job_deleted(run: Run) -> Iterator[None]:
    """Somebody deletes the attempt's RayJob."""
    run.kubectl("delete", "rayjobs", "--wait=false", f"--selector={of_run(run)}")
    yield


@contextmanager
def token_deleted(run: Run) -> Iterator[None]:
    """The Secret with the run's token is deleted; the operator makes it anew."""
    run.kubectl("delete", "secrets", f"--selector={of_run(run)}")
    yield


@contextmanager
def network_policy_deleted(run: Run) -> Iterator[None]:
    """The run's NetworkPolicy is deleted; the operator makes it anew."""
    run.kubectl("delete", "networkpolicies", f"--selector={of_run(run)}")
    yield


@contextmanager
def spec_edited(run: Run) -> Iterator[None]:
    """An edit of `checkpoints`, which applies from the next attempt on. Another one in the same run
    changes it back.
    """
    present = run.kubectl.get("trainingrun", run.name)["spec"]["checkpoints"]["everySeconds"]
    run.patch(checkpoints={"everySeconds": 4 if present != 4 else CHECKPOINT_SECONDS})
    yield


@contextmanager
def suspended_for_a_moment(run: Run) -> Iterator[None]:
    """`suspend` is set, and taken back before every pod is gone."""
    try:
        run.patch(suspend=True)
        yield
    finally:
        run.patch(suspend=False)


@contextmanager
def run_deleted(run: Run) -> Iterator[None]:
    """Its user deletes the run."""
    run.kubectl.delete("trainingrun", run.name)
    yield
