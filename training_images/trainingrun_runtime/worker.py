"""What surrounds the training function on every worker: restore, notice, blame."""

import importlib
import inspect
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
import ray.train
from ray.train.collective import broadcast_from_rank_zero

from trainingrun.api.contract import RunContract

from . import prestarted_worker
from .checkpoints import checkpoint_files, manifest
from .checkpoints.bucket import Bucket
from .checkpoints.manifest import Manifest
from .checkpoints.storage_retry import Patience, told_to
from .coordination.preemption_notice import Notice, NoticeWatcher
from .error_text import first_line
from .failure_causes import PeerLost, Preempted, Suspended, is_collective_error
from .ray_internals import nodes, training

if TYPE_CHECKING:
    from .session import Session

log = logging.getLogger(__name__)

BLAME_SECONDS = 5.0
"""How long an error that a lost peer may have caused is held back: Ray then sees the loss itself
first. With the health checks that the operator sets, a dead node is noticed within it or the error
counts as a lost peer all the same."""


class FunctionError(Exception):
    """`training.function` names nothing that can be called."""


class Worker:
    """One rank of the run, as the session sees it.

    Args:
        board: handle of the `Board` actor.
        contract: what the operator said.
    """

    def __init__(self, board: Any, contract: RunContract) -> None:
        context = ray.train.get_context()
        self.board = board
        self.rank: int = context.get_world_rank()
        self.world_size: int = context.get_world_size()
        self.every_seconds = contract.checkpoints.every_seconds
        """Seconds of training between periodic checkpoints."""
        self.timeout_s = contract.torch_timeout_seconds
        """Seconds after which a collective call fails."""
        self.restored: Manifest | None = None
        """The checkpoint that this worker group begins from."""
        self.group = 0
        """Number of the worker group, from 1."""
        self.patience = Patience(told_to(board, f"rank {self.rank}"))
        """Waits for the store, and tells the board."""
        self.session: Session | None = None
        """What answers notices, once the training function has made one."""
        self._watcher = NoticeWatcher(self._answer)
        self._spare: threading.Timer | None = None

    @property
    def notice(self) -> Notice | None:
        """This pod's own notice, once there is one."""
        return self._watcher.notice

    def take_over(self, session: "Session") -> None:
        """The session answers notices from now on.

        Raises:
            RuntimeError: there is one already.
        """
        if self.session is not None:
            raise RuntimeError(
                "the training function has a Session already, and checkpoints hold one; pass all "
                "objects to the first one"
            )
        self.session = session

    def saved(self) -> None:
        """What this pod had to save is committed."""
        self._watcher.saved()

    def begin(self, bucket: Bucket) -> None:
        """Agree with the other ranks on the newest intact checkpoint and hand it to Ray."""
        context = ray.get_runtime_context()
        self.board.joined.remote(
            self.rank,
            context.get_node_id(),
            os.environ.get("NODE_NAME", ""),
            os.environ.get("POD_NAME", ""),
        )
        chosen: Any = None
        if self.rank == 0:
            # What the group before this one uploaded is there; it counts in a moment.
            while ray.get(self.board.uploads_waiting.remote()):
                time.sleep(0.1)
            found, skipped = self.patience(lambda: manifest.newest_intact(bucket))
            step = found.step if found else 0
            group = ray.get(
                self.board.group_started.remote(self.world_size, step, [s.reason for s in skipped])
            )
            chosen = (found.model_dump() if found else None, group)
        document, self.group = broadcast_from_rank_zero(chosen)
        self.restored = Manifest.model_validate(document) if document else None
        if self.restored:
            training.offer_checkpoint(*checkpoint_files.offered(bucket, self.restored))
        else:
            training.offer_checkpoint(None, None)
        training.seal_uploads(_digest, self.patience)
        training.keep_checkpoints_apart(self.group)
        self._watcher.start()
        self._spare = prestarted_worker.keep()

    def end(self) -> None:
        """The training function returned or raised."""
        self._watcher.stop()
        if self._spare is not None:
            self._spare.cancel()

    def _answer(self, notice: Notice) -> None:
        if self.session is not None:
            return  # the session reads `notice` after its next step
        # Plain Ray Train code learns of it by ray.train.get_preemption_info().
        nodes.drain_own_node("the pod is being deleted", notice.deadline)
        before = ray.get(self.board.commits.remote())
        while time.time() < notice.deadline and self.session is None:
            if ray.get(self.board.commits.remote()) > before:
                self.saved()
                return
            time.sleep(0.2)


_worker: Worker | None = None


def this_worker() -> Worker:
    """The worker of this process.

    Raises:
        RuntimeError: the process runs no training function of a TrainingRun.
    """
    if _worker is None:
        raise RuntimeError(
            "a Session works only inside the function that training.function names; "
            "try it on this machine with `trainingrun run FILE --local`"
        )
    return _worker


def _digest(folder: Path) -> dict[str, Any]:
    return {name: asdict(digest) for name, digest in manifest.digest_folder(folder).items()}


def load(function: str) -> Callable[..., Any]:
    """The function that `module:name` stands for.

    Raises:
        FunctionError: with one sentence: what is wrong and what to do.
    """
    module, _, name = function.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise FunctionError(
            f"training.function {function!r} cannot be imported: there is no module "
            f"{error.name!r} in the image; correct the name or use an image that has it"
        ) from error
    except AttributeError as error:
        raise FunctionError(
            f"training.function {function!r} cannot be imported: module {module!r} has no "
            f"{name!r}; correct the name"
        ) from error
    if not callable(found):
        raise FunctionError(f"training.function {function!r} is not a function; correct the name")
    return found  # type: ignore[no-any-return]


class Supervised:
    """The training function as Ray calls it on each worker.

    Args:
        board: handle of the `Board` actor.
        contract: what the operator said.
        function: the user's function, where it is not to be loaded by the contract's name.
    """

    def __init__(
        self, board: Any, contract: RunContract, function: Callable[..., Any] | None = None
    ) -> None:
        self._board, self._contract, self._function = board, contract, function
        self.__name__ = "train"

    def __call__(self, config: dict[str, Any]) -> Any:
        """Train; returns what the user's function returns."""
        global _worker
        storage = self._contract.storage
        bucket = Bucket.open(storage.uri, storage.endpoint, storage.region)
        worker = _worker = Worker(self._board, self._contract)
        function = self._function or load(self._contract.function or "")
        worker.begin(bucket)
        try:
            returned = _call(function, config)
            if worker.session is not None:
                worker.session.conclude()
            return returned
        except (Preempted, Suspended):
            raise
        except Exception as error:
            if not is_collective_error(error):
                raise
            log.warning("a collective broke: %s", first_line(error))
            time.sleep(BLAME_SECONDS)
            raise PeerLost(first_line(error)) from error
        finally:
            worker.end()


def _call(function: Callable[..., Any], config: dict[str, Any]) -> Any:
    """Call the training function with the config, unless it takes none."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.name == "config" and p.kind is p.KEYWORD_ONLY for p in parameters):
        return function(config=config)
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    # A default is no reason to withhold it; several of them are settings of another caller.
    wanted = len(places) == 1 or any(p.default is p.empty or p.name == "config" for p in places[:1])
    return function(config) if wanted else function()
