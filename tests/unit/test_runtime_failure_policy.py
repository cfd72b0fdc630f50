"""What a run that has lost too many worker groups in a row says of them."""

import pytest
from ray.train import WorkerGroupError

from trainingrun_runtime.driver.failure_policy import remedied
from trainingrun_runtime.known_errors import remedies
from trainingrun_runtime.known_errors.failure_causes import ClassifiedFailure, PeerLost, classify
from trainingrun_runtime.ray_internals.controller import WorkerHealthCheckFailedError


def death(reason: str) -> ClassifiedFailure:
    error = WorkerHealthCheckFailedError("it failed", failure=RuntimeError(reason))
    return classify(WorkerGroupError("failed", {0: error}))


def lost_peer(error: Exception) -> ClassifiedFailure:
    return classify(WorkerGroupError("failed", {0: PeerLost(remedies.explained(error))}))


KILLED = death("Task was killed due to the node running low on memory.")
DIED = death("The actor died.")
NCCL = lost_peer(RuntimeError("NCCL error in: ProcessGroupNCCL.cpp, unhandled system error"))
RESET = lost_peer(RuntimeError("gloo: Connection reset by peer"))


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        pytest.param([KILLED, DIED, RESET], KILLED, id="only one loss tells of the memory"),
        pytest.param([NCCL, DIED], NCCL, id="NCCL cannot be set up, and a rank dies"),
        pytest.param([NCCL, RESET], NCCL, id="the last one tells less"),
        pytest.param([RESET, DIED], None, id="nobody knows what to do"),
        pytest.param([NCCL, KILLED], KILLED, id="why a rank died says more than what others met"),
        pytest.param([KILLED, NCCL], KILLED, id="also if it comes first"),
    ],
)
def test_what_one_of_the_losses_says_to_do_is_kept(
    failures: list[ClassifiedFailure], said: ClassifiedFailure | None
) -> None:
    found = None
    for failure in failures:
        found = remedied(found, failure)
    assert found is said
