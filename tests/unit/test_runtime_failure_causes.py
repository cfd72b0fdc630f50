"""Causes of failures: a lost machine is no error of the application, and a bug no lost machine."""

import multiprocessing
import pickle
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection

import pytest
import ray.train
from ray.exceptions import ActorDiedError, RayActorError
from ray.train import ControllerError, PreemptionError, WorkerGroupError
from ray.train.v2.api.preemption import PreemptionInfo

from trainingrun_runtime.known_errors.failure_causes import (
    DataLost,
    FailureCause,
    OwnPodPreempted,
    PeerLost,
    Preempted,
    Suspended,
    classify,
    first_line,
    is_collective_error,
)
from trainingrun_runtime.ray_internals.training import (
    WorkerHealthCheckFailedError,
    WorkerHealthCheckTimeoutError,
)
from trainingrun_runtime.store.storage_errors import CredentialsError
from trainingrun_runtime.worker.leaving_a_rank import as_text

DIED = WorkerHealthCheckFailedError("worker died", failure=ActorDiedError())
GONE = WorkerHealthCheckFailedError("worker died", failure=RayActorError(preempted=True))
BUG = ValueError("bad batch")
PEER = PeerLost("Connection reset by peer")
STOPPED = WorkerHealthCheckTimeoutError("A worker health check has been hanging for 60 seconds.")
OUTAGE = OSError(
    "When uploading part for key 'x' in bucket 'runs': AWS Error NETWORK_CONNECTION during "
    "UploadPart operation: curlCode: 28, Timeout was reached"
)
FULL = OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("failures", "cause"),
    [
        pytest.param({0: BUG}, FailureCause.APPLICATION, id="bug"),
        pytest.param({0: BUG, 1: BUG}, FailureCause.APPLICATION, id="bug on both"),
        pytest.param({0: PEER, 1: BUG}, FailureCause.APPLICATION, id="bug and its peer"),
        pytest.param({0: PEER}, FailureCause.WORKER_LOST, id="peer alone"),
        pytest.param({0: PEER, 1: DIED}, FailureCause.WORKER_LOST, id="peer and a death"),
        pytest.param({0: BUG, 1: DIED}, FailureCause.WORKER_LOST, id="bug and a death"),
        pytest.param({0: ActorDiedError()}, FailureCause.WORKER_LOST, id="actor died"),
        pytest.param({0: STOPPED, 1: STOPPED}, FailureCause.WORKER_LOST, id="processes stopped"),
        pytest.param({0: BUG, 1: STOPPED}, FailureCause.WORKER_LOST, id="bug and a stopped one"),
        pytest.param({0: OUTAGE}, FailureCause.STORAGE, id="outage"),
        pytest.param({0: FULL}, FailureCause.STORAGE, id="disk full"),
        pytest.param(
            {0: CredentialsError("refused"), 1: PEER},
            FailureCause.STORAGE,
            id="credentials and a peer",
        ),
        pytest.param({0: OUTAGE, 1: DIED}, FailureCause.WORKER_LOST, id="outage and a death"),
        pytest.param({0: OUTAGE, 1: BUG}, FailureCause.APPLICATION, id="outage and a bug"),
        pytest.param(
            {0: Preempted("saved"), 1: DIED}, FailureCause.PREEMPTED, id="preempted and a death"
        ),
        pytest.param(
            {0: Preempted("saved"), 1: Preempted("saved")}, FailureCause.PREEMPTED, id="preempted"
        ),
        pytest.param(
            {0: Suspended("saved"), 1: Suspended("saved")}, FailureCause.SUSPENDED, id="suspended"
        ),
        pytest.param(
            {0: Suspended("saved"), 1: Preempted("saved")},
            FailureCause.SUSPENDED,
            id="suspended and preempted",
        ),
    ],
)
def test_cause(failures, cause):
    assert classify(WorkerGroupError("it failed", failures)).cause is cause


@pytest.mark.parametrize(
    ("failures", "ranks"),
    [
        pytest.param({0: Preempted("a"), 1: OwnPodPreempted("a")}, (1,), id="the pod of rank 1"),
        pytest.param({0: Preempted("a"), 1: Preempted("a")}, (), id="the head, or a drain"),
    ],
)
def test_a_preemption_is_that_of_the_pod_with_the_notice(failures, ranks):
    """The operator sees that pod end too, and counts one loss where both name it."""
    assert classify(WorkerGroupError("it failed", failures)).ranks == ranks


def caused_by(cause: Exception, error: Exception) -> BaseException:
    try:
        raise error from cause
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        pytest.param(ImportError("No module named 'nets'"), "UnlessRepeated", id="import"),
        pytest.param(ValueError("bad batch"), "UnlessRepeated", id="value"),
        pytest.param(RuntimeError("mat1 and mat2 cannot be multiplied"), "UnlessRepeated", id="c"),
        pytest.param(RuntimeError("CUDA error: unspecified launch failure"), "Always", id="gpu"),
        pytest.param(OSError("We couldn't connect to the hub"), "Always", id="network"),
        pytest.param(Exception("anything"), "Always", id="of unknown kind"),
        pytest.param(
            caused_by(ConnectionResetError("reset"), ValueError("no files were found")),
            "Always",
            id="caused by the network",
        ),
    ],
)
def test_an_error_of_the_code_is_the_same_again_unless_something_else_is_behind_it(
    error: Exception, retry: str
):
    sent = pickle.loads(pickle.dumps(as_text(error)))
    assert classify(WorkerGroupError("it failed", {0: sent})).retry == retry


def test_a_controller_error_is_nobodys_bug():
    assert (
        classify(ControllerError(TimeoutError("no workers"))).cause is FailureCause.INFRASTRUCTURE
    )


def test_storage_that_fails_in_rays_controller_is_storage():
    assert classify(ControllerError(OUTAGE)).cause is FailureCause.STORAGE


def raised(call: Callable[[], object]) -> BaseException:
    """What it raises, with the traceback."""
    with pytest.raises(ConnectionError) as met:
        call()
    return met.value


def raised_in(module: str, error: ConnectionError) -> BaseException:
    """The error as code of that module raises it."""
    scope = {"__name__": module}
    exec("def fail(error):\n    raise error", scope)
    return raised(lambda: scope["fail"](error))


def download_from_a_server_that_ends() -> None:
    def end(listener: socket.socket) -> None:
        client, _ = listener.accept()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # which resets the connection

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=end, args=(listener,)).start()
        client = HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=30)
        with closing(client):
            client.request("GET", "/")
            client.getresponse()


def send_to_a_process_that_has_ended() -> None:
    there, here = multiprocessing.Pipe()
    there.close()
    with here:
        here.send(1)


class XGBoostError(ValueError):
    """As XGBoost's, which is not installed here."""


class LightGBMError(Exception):
    """As LightGBM's."""


class UnavailableError(Exception):
    """As TensorFlow's, of a task that does not answer."""


class InternalError(Exception):
    """As TensorFlow's."""


def test_the_message_names_rank_type_and_first_line():
    classified = classify(WorkerGroupError("it failed", {3: ValueError("bad batch\nof 64")}))
    assert classified.message == "rank 3 raised ValueError: bad batch"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            RuntimeError("[gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"),
            id="gloo",
        ),
        pytest.param(RuntimeError("NCCL error in: ProcessGroupNCCL.cpp"), id="NCCL"),
        pytest.param(
            RuntimeError("Timed out waiting 1800000ms for recv operation to complete"), id="timeout"
        ),
        pytest.param(ConnectionResetError("Connection reset by peer"), id="connection reset"),
        pytest.param(
            raised_in("torch.distributed.rpc", ConnectionResetError("Connection reset by peer")),
            id="connection of PyTorch",
        ),
        pytest.param(
            raised_in("train", ConnectionError("gloo: connection closed by peer")),
            id="connection of gloo",
        ),
        pytest.param(
            XGBoostError("[22:10] /xgboost/src/collective/result.cc:78: Failed to recv."),
            id="XGBoost",
        ),
        pytest.param(
            LightGBMError("Socket recv error, Connection reset by peer (code: 104)"), id="LightGBM"
        ),
        pytest.param(
            UnavailableError("Collective ops is aborted by: Error /job:worker/replica:0/task:1"),
            id="TensorFlow",
        ),
        pytest.param(DataLost("the batches were lost"), id="Ray Data"),
    ],
)
def test_what_a_dying_peer_causes_is_a_collective_error(error):
    assert is_collective_error(error)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(ValueError("bad batch"), id="value"),
        pytest.param(
            RuntimeError("mat1 and mat2 shapes cannot be multiplied (64x10 and 12x3)"), id="shapes"
        ),
        pytest.param(RuntimeError("CUDA error: device-side assert triggered"), id="CUDA assert"),
        pytest.param(KeyError("gloo"), id="name of a library"),
        pytest.param(
            RuntimeError("Distributed package doesn't have NCCL built in"), id="no NCCL at all"
        ),
        pytest.param(
            RuntimeError(
                "ProcessGroupGloo::allgather: invalid tensor size at index 0 "
                "(expected (2), got (3))"
            ),
            id="Gloo",
        ),
        pytest.param(
            RuntimeError(
                "[rank0]:[F1129 11:42:00.621470879 ProcessGroupGloo.cpp:2216] Check failed: "
                "outputs[0].sizes().vec() == inputs[0][i].sizes().vec() (3 vs. 2)."
            ),
            id="Gloo's check",
        ),
        pytest.param(XGBoostError("Invalid parameter: max_dept"), id="XGBoost"),
        pytest.param(
            InternalError("Collective ops is aborted by: Shape mismatch"), id="TensorFlow"
        ),
        pytest.param(UnavailableError("the bucket does not answer"), id="unavailable"),
        pytest.param(
            raised_in("torch.utils.data.dataloader", ConnectionResetError("reset by peer")),
            id="data loader",
        ),
        pytest.param(
            raised_in("train", ConnectionError("connection closed")), id="the training itself"
        ),
    ],
)
def test_what_the_code_itself_does_wrong_is_not(error):
    assert not is_collective_error(error)


@pytest.mark.parametrize(
    "call", [download_from_a_server_that_ends, send_to_a_process_that_has_ended]
)
def test_the_end_of_a_connection_of_its_own_is_not(call):
    error = raised(call)
    assert re.search("(?i)by peer|broken pipe", str(error))
    assert not is_collective_error(error)


def test_an_error_without_text_is_called_by_its_type():
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"


@pytest.mark.parametrize(
    ("error", "saved", "lost"),
    [
        pytest.param(
            WorkerGroupError("it failed", {0: Preempted("a"), 1: OwnPodPreempted("a")}),
            True,
            (),
            id="all ranks have saved on a notice",
        ),
        pytest.param(
            PreemptionError(PreemptionInfo(deadline_ms=1, preempted_node_to_ranks={"a": [1]})),
            False,
            (),
            id="a drain ended first, and its node may still be there",
        ),
        pytest.param(
            WorkerGroupError("it failed", {0: PEER, 1: GONE}),
            False,
            (1,),
            id="a drained node is gone",
        ),
        pytest.param(
            WorkerGroupError("it failed", {0: PEER, 1: DIED}), False, (1,), id="a rank died"
        ),
    ],
)
def test_survivors_are_asked_unless_all_ranks_have_saved(error, saved, lost):
    classified = classify(error)
    assert classified.cause in (FailureCause.PREEMPTED, FailureCause.WORKER_LOST)
    assert (classified.saved, classified.lost) == (saved, lost)


def test_a_drained_node_that_is_gone_before_its_ranks_were_asked_is_preempted():
    assert classify(WorkerGroupError("it failed", {0: PEER, 1: GONE})).cause is (
        FailureCause.PREEMPTED
    )
    assert classify(WorkerGroupError("it failed", {0: PEER, 1: DIED})).cause is (
        FailureCause.WORKER_LOST
    )


def test_a_rank_that_was_killed_for_memory_is_a_loss_that_says_what_to_do():
    killed = WorkerHealthCheckFailedError(
        "A worker health check failed.",
        failure=RuntimeError("Task was killed due to the node running low on memory."),
    )
    found = classify(WorkerGroupError("1 rank failed", {0: killed}))
    assert found.cause is FailureCause.WORKER_LOST
    assert found.remedied
    assert "raise workers.resources.memory" in found.message
    assert not classify(WorkerGroupError("1 rank failed", {0: DIED})).remedied


if hasattr(ray.train, "NCCLHangError"):  # Ray 2.58 has no such detector

    def test_what_ray_s_detector_of_nccl_raises_is_a_hang():
        found = classify(ray.train.NCCLHangError("1 of 2 communicators\nTo debug:", {}))
        says = "NCCL hangs: 1 of 2 communicators"
        assert (found.cause, found.message) == (FailureCause.HANG, says)
