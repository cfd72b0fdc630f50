"""A rank whose script runs in a process of its own, as torchrun would start it.

What torchrun sets: `torch/distributed/elastic/agent/server/local_elastic_agent.py` and
`torch/distributed/run.py`, read for torch 2.13. As torchrun's agent does, rank 0's process has the
store by which the scripts find each other, so that no other process can take its port first.
"""

import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import ray
import ray.util
from ray.train.collective import barrier

from trainingrun_protocol.contract import (
    CHECKPOINT_FOLDER_ENV,
    CONFIG_ENV,
    ContractTorchrun,
    RunContract,
)
from trainingrun_protocol.variable_references import with_variables

from ..checkpoints.background import begin_behind_training, behind_training
from ..coordinator.checkpoints import Command
from ..coordinator.scripts import Meeting, Orders, Save, Told
from ..data import kept_batch
from ..known_errors.failure_causes import OwnPodPreempted, Preempted, Suspended
from ..ray_internals import nodes, training
from ..state_directory import state_directory
from .script_folder import FOLDER, SETTLED_S, ScriptFolder
from .script_process import ScriptProcess
from .worker import Worker, this_worker

if TYPE_CHECKING:
    from torch.distributed import TCPStore

log = logging.getLogger(__name__)

_TELL_EVERY_S = 1.0
_LOOK_EVERY_S = 0.1
"""Seconds between two looks at the script's process."""
_LOOK_SHARE = 50.0
"""How many times the CPU time of a look through the folder passes until the next one: what this
process does is not taken for work of the training."""
_LONGEST_PAUSE_S = 10.0
_LAST_DELETIONS_S = 30.0
"""Seconds that the end of the scripts waits for what is being deleted."""
_NO_LIMIT = str(2**31 - 1)
"""For a script that asks how often it may be started again: losses are not counted."""

COST = (
    f"the script runs as with torchrun: a crash costs what it has done since the last checkpoint "
    f"that it has written to ${CHECKPOINT_FOLDER_ENV}, and so does a preemption, unless it handles "
    "SIGTERM by writing one"
)
"""What is said at the start."""


class TorchrunScript:
    """The training function of a rank that runs a script.

    Args:
        contract: the operator's settings of this attempt.
        script: what to run.
    """

    def __init__(self, contract: RunContract, script: ContractTorchrun) -> None:
        self._script, self._run_id, self._config = script, contract.uid, contract.config

    def __call__(self, config: dict[str, Any]) -> None:
        """Run it to its end; returns once all scripts of the worker group have ended with 0.

        Raises:
            Preempted, Suspended: the worker group ends, and what the scripts have written is kept.
            BaseException: the script has failed; see `ScriptProcess.error`.
        """
        command = self._command()
        worker = this_worker()
        if worker.keeps_batch:
            raise ValueError(kept_batch.use_microbatches("a script of torchrun takes its own data"))
        worker.answers_notices()
        store = _store() if worker.rank == 0 else None
        meeting = _meet(worker, store)
        if worker.rank == 0:
            log.info("%s", COST)
            worker.coordinator.reports_nothing.remote(worker.group, COST)
        advise = worker.advise if worker.rank == 0 else log.warning
        folder = ScriptFolder(state_directory() / FOLDER, advise=advise)
        lock = os.open(state_directory() / f"{FOLDER}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            place = _Place(worker, meeting)
            if place.local_rank == 0:
                # Scripts of a former worker group may be about to end.
                fcntl.flock(lock, fcntl.LOCK_EX)
                _prepare(worker, folder)
            barrier()
            fcntl.flock(lock, fcntl.LOCK_SH)
            environment = {
                **os.environ,
                **place.variables(self._run_id),
                CONFIG_ENV: json.dumps(self._config),
                CHECKPOINT_FOLDER_ENV: str(folder.path),
            }
            command += (with_variables(each, environment) for each in self._script.args)
            _Rank(worker, place, folder, command, environment, lock).run()
        finally:
            os.close(lock)
            del store

    def _command(self) -> list[str]:
        """What to run, without its arguments.

        Raises:
            FileNotFoundError, ModuleNotFoundError: it is not there.
        """
        python, module = os.environ.get("PYTHON_EXEC", sys.executable), self._script.module
        if module is not None:
            # The package alone: its own modules are found by importing it.
            if find_spec(module.partition(".")[0]) is None:
                raise ModuleNotFoundError(
                    f"training.torchrun.module {module} is not in the image, in training.code or "
                    "in training.requirements; correct its name, or add it there"
                )
            return [python, "-u", "-m", module]
        path = Path(self._script.script or "").absolute()
        if not path.is_file():
            raise FileNotFoundError(f"training.torchrun.script {path} is no file; correct its path")
        return [python, "-u", str(path)]


def _store() -> "TCPStore":
    from torch.distributed import TCPStore

    # Any free port. It answers as long as this object is there.
    return TCPStore(ray.util.get_node_ip_address(), 0, is_master=True, wait_for_workers=False)


def _meet(worker: Worker, store: "TCPStore | None") -> Meeting:
    node = ray.get_runtime_context().get_node_id()
    own = (str(store.host), int(store.port)) if store is not None else None
    while True:
        call = worker.coordinator.meet.remote(
            worker.group, worker.rank, worker.world_size, node, own
        )
        meeting: Meeting | None = ray.get(call)
        if meeting is not None:
            return meeting
        time.sleep(_LOOK_EVERY_S)


def _prepare(worker: Worker, folder: ScriptFolder) -> None:
    """Put the files of the checkpoint that the worker group begins from into the folder."""
    fetched = worker.fetched
    manifest = fetched.manifest if fetched is not None else None
    bucket = fetched.bucket if fetched is not None else worker.bucket
    folder.prepare(bucket, manifest, worker.storage_retry)


class _Place:
    """Where a rank is among the others, as torchrun counts."""

    def __init__(self, worker: Worker, meeting: Meeting) -> None:
        self._worker, self._meeting = worker, meeting
        own = meeting.nodes[worker.rank]
        self.beside = [rank for rank, node in enumerate(meeting.nodes) if node == own]
        """The ranks of this pod."""
        self.local_rank = self.beside.index(worker.rank)
        """This rank among them."""

    def variables(self, run_id: str) -> dict[str, str]:
        """What torchrun sets, but for OMP_NUM_THREADS, which Ray has set to the rank's CPUs."""
        rank, size = str(self._worker.rank), str(self._worker.world_size)
        pods = list(dict.fromkeys(self._meeting.nodes))
        return {
            "MASTER_ADDR": self._meeting.address,
            "MASTER_PORT": str(self._meeting.port),
            "RANK": rank,
            "WORLD_SIZE": size,
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(len(self.beside)),
            "GROUP_RANK": str(pods.index(self._meeting.nodes[self._worker.rank])),
            "GROUP_WORLD_SIZE": str(len(pods)),
            "ROLE_NAME": "default",
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": size,
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_RESTART_COUNT": str(self._worker.group - 1),
            "TORCHELASTIC_MAX_RESTARTS": _NO_LIMIT,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get(
                "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
            ),
        }


class _Rank:
    """The rank's own process while its script runs."""

    def __init__(
        self,
        worker: Worker,
        place: _Place,
        folder: ScriptFolder,
        command: list[str],
        environment: Mapping[str, str],
        lock: int,
    ) -> None:
        self._worker, self._place, self._folder = worker, place, folder
        self._of_ray = training.PreemptionDeadline()
        self._ended: tuple[int, float] | None = None
        self._others: Mapping[int, tuple[int, float]] = {}  # how scripts of this pod have ended
        self._known: Any = None  # the folder as told last
        self._next_look = 0.0
        self._asked = self._told_process = False
        self._uploads: _Upload | None = None
        self._deletions: list[threading.Thread] = []
        self._tell()  # before the script begins: how the folder was
        self._script = ScriptProcess(command, environment, lock)

    def run(self) -> None:
        """Return once all scripts have ended with 0, or raise."""
        try:
            orders = Orders()
            while not orders.over:
                self._wait()
                self._name_process()
                orders = self._tell()
                if orders.command > Command.CHECKPOINT:
                    self._leave(orders)
        finally:
            self._script.end()
        if self._asked:
            self._end_group(orders.command)
        until = time.monotonic() + _LAST_DELETIONS_S
        for deletion in self._deletions:
            deletion.join(max(until - time.monotonic(), 0))

    def _wait(self) -> None:
        """Until it is time to tell more."""
        if self._ended is not None:
            self._wait_for_others()
            return
        until = time.monotonic() + _TELL_EVERY_S
        while time.monotonic() < until:
            code = self._script.poll()
            if code is not None:
                self._end(code)
                return
            time.sleep(_LOOK_EVERY_S)

    def _wait_for_others(self) -> None:
        """The script has ended; in the stack of a hang this name tells it, see `verdict`."""
        time.sleep(_TELL_EVERY_S)

    def _name_process(self) -> None:
        """Tell once which process trains, for stacks."""
        found = self._script.process() if not self._told_process else None
        if found is not None:
            self._tell_process(found)

    def _tell_process(self, process: psutil.Process) -> None:
        with suppress(psutil.Error):
            began = process.create_time()
            self._worker.coordinator.script_runs.remote(
                self._worker.rank, self._worker.group, process.pid, began
            )
            self._told_process = True

    def _end(self, code: int) -> None:
        """The script has ended.

        Raises:
            BaseException: it has failed.
        """
        ended = (code, time.time())
        if code and not self._asked:
            # A script that was asked already may have ended, and this one for the want of it.
            self._asked = self._tell().command > Command.CHECKPOINT
        self._ended = ended
        # This one waits from now on: the script that is gone would be blamed for another's hang.
        self._tell_process(psutil.Process())
        if code == 0:
            return
        if self._asked:
            log.warning(
                "the script was to end, and ended with %s and not with 0, so what it has written "
                "in the %g s before is in no checkpoint",
                _signal_name(-code) if code < 0 else code,
                SETTLED_S,
            )
            return
        if code > 0:
            raise self._script.error(code)
        # As with a rank whose own process a signal ends: a rank is lost, whoever has sent it.
        print(f"the script was ended by {_signal_name(-code)}", file=sys.stderr, flush=True)
        self._script.end()
        os.kill(os.getpid(), signal.SIGKILL)

    def _tell(self) -> Orders:
        state = None
        if self._place.local_rank == 0 and time.monotonic() >= self._next_look:
            before_s = time.thread_time()
            found = self._folder.state(self._others, len(self._place.beside))
            state, self._known = (found if found != self._known else None), found
            pause_s = _LOOK_SHARE * (time.thread_time() - before_s)
            self._next_look = time.monotonic() + min(pause_s, _LONGEST_PAUSE_S)
        uploaded = self._uploads.result() if self._uploads is not None else None
        if uploaded is not None:
            self._uploads = None
        notice = self._worker.notice
        deadline = notice.deadline if notice is not None else self._of_ray.read()
        left_s = deadline - time.time() if deadline is not None else None
        told = Told(self._ended, state, uploaded, left_s)
        call = self._worker.coordinator.script_told.remote(
            self._worker.group, self._worker.rank, told
        )
        orders: Orders = ray.get(call)
        if orders.ended != self._others:
            self._others, self._next_look = orders.ended, 0.0
        if orders.save is not None and self._uploads is None:
            self._uploads = _Upload(self._worker, self._folder, orders.save)
        if orders.unused is not None:
            # Beside the script: a notice, and the end of the script, do not wait for the store.
            delete = partial(_delete, self._worker, _path(self._worker, orders.unused))
            self._deletions = [each for each in self._deletions if each.is_alive()]
            self._deletions.append(begin_behind_training(delete))
        return orders

    def _leave(self, orders: Orders) -> None:
        """The scripts are asked to end, and ended where they do not."""
        if not self._asked:
            self._asked = True
            self._script.terminate()
        if self._ended is None and orders.left_s <= 0:
            log.warning("the script did not end in time after SIGTERM, and is killed")
            self._script.end()

    def _end_group(self, command: Command) -> None:
        """End this worker group, once what its scripts have written is committed.

        Raises:
            Preempted, Suspended: always.
        """
        worker = self._worker
        while ray.get(worker.coordinator.uploads_waiting.remote()):
            time.sleep(_LOOK_EVERY_S)
        notice = worker.notice
        if notice is not None:
            # Before the exit: otherwise Ray places the next worker group on the pod that ends.
            nodes.drain_own_node("the pod is being deleted", notice.deadline)
            worker.confirm_saved()
        barrier()
        if command == Command.SUSPEND:
            raise Suspended("suspended; the scripts have ended")
        preempted = Preempted if notice is None else OwnPodPreempted
        raise preempted("a pod is preempted; the scripts have ended")


def _signal_name(number: int) -> str:
    with suppress(ValueError):  # of those for real time, the first and the last have one
        return signal.Signals(number).name
    return f"signal {number}"


def _path(worker: Worker, number: int) -> str:
    """Where a checkpoint of a worker group is, as Ray names it."""
    return str(training.stored(f"folder-{number:06d}-{worker.group}").path)


def _delete(worker: Worker, path: str) -> None:
    """Delete what was uploaded of a checkpoint that is none; what is left a later sweep deletes."""
    bucket = worker.bucket
    try:
        worker.storage_retry(lambda: bucket.delete_folder(bucket.key_of(path)))
    except Exception as error:
        log.warning("what was uploaded of a discarded checkpoint is not deleted: %s", error)


class _Upload:
    """The upload of a pod's part of a checkpoint, in a thread beside the script."""

    def __init__(self, worker: Worker, folder: ScriptFolder, save: Save) -> None:
        self._worker, self._folder, self._save = worker, folder, save
        self._path = _path(worker, save.number)
        self._done: tuple[int, str | None] | None = None
        self._error: Exception | None = None
        threading.Thread(target=self._run, name="upload", daemon=True).start()

    def result(self) -> tuple[int, str | None] | None:
        """As `Told.uploaded` has it; None: it goes on.

        Raises:
            StorageError: the store did not answer.
        """
        if self._error is not None:
            raise self._error
        return self._done

    def _run(self) -> None:
        try:
            whole = behind_training(self._upload)
            self._done = (self._save.number, self._path if whole else None)
        except Exception as error:
            self._error = error

    def _upload(self) -> bool:
        worker = self._worker
        key = worker.bucket.key_of(self._path)
        return self._folder.upload(
            self._save, worker.bucket, key, worker.rank, worker.storage_retry
        )
