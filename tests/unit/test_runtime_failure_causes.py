"""Who is to blame: a lost machine is never charged to the application, nor a bug to a machine."""

import pytest
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, WorkerGroupError

from trainingrun_runtime.checkpoints.storage_errors import CredentialsError
from trainingrun_runtime.failure_causes import (
    Blame,
    PeerLost,
    Preempted,
    Suspended,
    first_line,
    is_collective_error,
    judge,
)
from trainingrun_runtime.ray_internals.controller import WorkerHealthCheckFailedError

DIED = WorkerHealthCheckFailedError("worker died", failure=ActorDiedError())
BUG = ValueError("bad batch")
PEER = PeerLost("Connection reset by peer")
OUTAGE = OSError(
    "When uploading part for key 'x' in bucket 'runs': AWS Error NETWORK_CONNECTION during "
    "UploadPart operation: curlCode: 28, Timeout was reached"
)
FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("failures", "blame"),
    [
        ({0: BUG}, Blame.APPLICATION),
        ({0: BUG, 1: BUG}, Blame.APPLICATION),
        ({0: PEER, 1: BUG}, Blame.APPLICATION),
        ({0: PEER}, Blame.WORKER_LOST),
        ({0: PEER, 1: DIED}, Blame.WORKER_LOST),
        ({0: BUG, 1: DIED}, Blame.WORKER_LOST),
        ({0: ActorDiedError()}, Blame.WORKER_LOST),
        ({0: OUTAGE}, Blame.STORAGE),
        ({0: FULL}, Blame.STORAGE),
        ({0: CredentialsError("refused"), 1: PEER}, Blame.STORAGE),
        ({0: OUTAGE, 1: DIED}, Blame.WORKER_LOST),
        ({0: OUTAGE, 1: BUG}, Blame.APPLICATION),
        ({0: Preempted("saved"), 1: DIED}, Blame.PREEMPTED),
        ({0: Preempted("saved"), 1: Preempted("saved")}, Blame.PREEMPTED),
        ({0: Suspended("saved"), 1: Suspended("saved")}, Blame.SUSPENDED),
        ({0: Suspended("saved"), 1: Preempted("saved")}, Blame.SUSPENDED),
    ],
)
def test_blame(failures, blame):
    assert judge(WorkerGroupError("it failed", failures)).blame is blame


def test_a_controller_error_is_nobodys_bug():
    assert judge(ControllerError(TimeoutError("no workers"))).blame is Blame.INFRASTRUCTURE


def test_storage_that_fails_in_rays_controller_is_storage():
    assert judge(ControllerError(OUTAGE)).blame is Blame.STORAGE


def test_the_message_names_rank_type_and_first_line():
    verdict = judge(WorkerGroupError("it failed", {3: ValueError("bad batch\nof 64")}))
    assert verdict.message == "rank 3 raised ValueError: bad batch"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"),
        RuntimeError("NCCL error in: ProcessGroupNCCL.cpp"),
        RuntimeError("Timed out waiting 1800000ms for recv operation to complete"),
        ConnectionResetError("Connection reset by peer"),
    ],
)
def test_what_a_dying_peer_causes_is_a_collective_error(error):
    assert is_collective_error(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad batch"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x10 and 12x3)"),
        RuntimeError("CUDA error: device-side assert triggered"),
        KeyError("gloo"),
    ],
)
def test_what_the_code_itself_does_wrong_is_not(error):
    assert not is_collective_error(error)


def test_an_error_without_text_is_called_by_its_type():
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
