"""The training function as Ray calls it on each worker: how it is found, called and ended."""

import importlib
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import ray
import ray.train

from trainingrun_protocol.contract import RunContract

from .. import stacks
from ..checkpoints.background import behind_training
from ..error_text import first_line
from ..known_errors import remedies
from ..known_errors.failure_causes import (
    PeerLost,
    Preempted,
    Resized,
    Suspended,
    TooManyWorkers,
    is_collective_error,
)
from ..output import announced
from ..ray_internals import quiet_logs, replaced_functions
from ..store.bucket import Bucket
from ..store.clients import start_client
from ..tracking import tracking
from . import leaving_a_rank
from .deepspeed_import import leave_out_extension
from .worker import Worker, begin

log = logging.getLogger(__name__)

_LOADED = time.time()
"""When PyTorch and Ray Train were imported: of a prestarted process long before its rank."""

PEER_LOSS_WAIT_S = 5.0
"""Seconds for which an error that a lost rank may have caused is held back, so that Ray detects the
loss first. With the health checks that the operator sets, Ray detects a dead node within them; else
the error counts as the loss of a rank, too."""


class FunctionError(TypeError):
    """`training.function` names nothing that can be called."""


def load_training_function(function: str) -> Callable[..., Any]:
    """The function that `module:name` stands for.

    Raises:
        FunctionError: with one sentence: what is wrong and what to do.
    """
    module, _, name = function.partition(":")
    try:
        imported = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise FunctionError(
            f"training.function {function!r} cannot be imported: there is no module "
            f"{error.name!r} in the image or in training.code; correct the name, or use an image "
            "or code that has it"
        ) from error
    try:  # apart: the module itself may raise such an error, which is the user's
        found = getattr(imported, name)
    except AttributeError as error:
        raise FunctionError(
            f"training.function {function!r} cannot be imported: module {module!r} has no "
            f"{name!r}; correct the name"
        ) from error
    if not callable(found) or inspect.isclass(found):
        raise FunctionError(f"training.function {function!r} is not a function; correct the name")
    return found  # type: ignore[no-any-return]


def _function_of(contract: RunContract) -> Callable[..., Any]:
    if contract.torchrun is None:
        return load_training_function(contract.function or "")
    from .torchrun import TorchrunScript

    return TorchrunScript(contract, contract.torchrun)


class TrainingFunction:
    """The training function as Ray calls it on each worker.

    Args:
        coordinator: handle of the `Coordinator` actor.
        contract: the operator's settings of this attempt.
        function: the user's function, where it is not to be loaded by the contract's name.
    """

    def __init__(
        self, coordinator: Any, contract: RunContract, function: Callable[..., Any] | None = None
    ) -> None:
        self._coordinator, self._contract, self._function = coordinator, contract, function
        self._group = 0
        self.__name__ = "train"

    def __call__(self, config: dict[str, Any]) -> bytes | None:
        """Train.

        Returns:
            What a script's function has returned, for `leaving_a_rank.unpacked`. Of another one
            nobody asks for it.
        """
        try:
            returned = self._train(config)
        except BaseException as error:
            self._announce(ended=True)
            told = leaving_a_rank.as_text(error)
            if isinstance(error, Preempted | Resized | Suspended):
                quiet_logs.end_with(f"the training function ends: {first_line(error)}")
            if told is error:
                raise
            raise told from leaving_a_rank.shown_cause(error)
        asked = self._function is not None and ray.train.get_context().get_world_rank() == 0
        return leaving_a_rank.packed(returned) if asked else None

    def _announce(self, *, ended: bool = False) -> None:
        """Say which rank prints what this process prints, and whether it trains no more."""
        with suppress(OSError):
            rank = ray.train.get_context().get_world_rank()
            files = announced.own_files()
            announced.announce(self._contract, files, self._group, rank, ended=ended)

    def _train(self, config: dict[str, Any]) -> Any:
        called = time.time()
        leaving_a_rank.print_any_text()
        stacks.log_on_signal()
        stacks.allow_tracing()
        self._group = ray.get(self._coordinator.next_group.remote())
        self._announce()
        behind_training(start_client)  # it uploads beside training
        storage = self._contract.storage
        bucket = Bucket.open(storage.uri, storage.endpoint, storage.region)
        worker = begin(self._coordinator, self._contract, bucket)
        worker.join(self._group)
        worker.times |= {"loaded": _LOADED, "called": called}
        replaced_functions.refuse_removed()
        leave_out_extension()
        function = self._function or _function_of(self._contract)
        worker.times["imported"] = time.time()
        worker.start()
        worker.times["ready"] = time.time()
        try:
            with tracking(worker.rank, self._contract, bucket):
                returned = _call(function, config, in_script=self._function is not None)
                if worker.session is not None:
                    worker.session.conclude()
                else:
                    _refuse_unrun(function, returned)
            worker.returned()
            return returned
        except (Preempted, Resized, Suspended):
            raise
        except TooManyWorkers as error:
            least = self._contract.minimum_workers
            if not self._contract.elastic or least is None or error.most < least:
                raise
            raise Resized(str(error), error.most) from error
        except Exception as error:
            if not is_collective_error(error):
                raise
            log.warning("a collective broke: %s", first_line(error))
            time.sleep(PEER_LOSS_WAIT_S)
            raise PeerLost(remedies.explained(error)) from error
        finally:
            _end(worker)


def _end(worker: Worker) -> None:
    try:
        worker.end()
    except Exception:  # it would take the place of the training function's own
        log.exception("the worker has not ended as it should")


def _call(function: Callable[..., Any], config: dict[str, Any], *, in_script: bool = False) -> Any:
    """Call the training function with the config: as a whole, or its keys by name.

    Args:
        function: the user's.
        config: `training.config`, or the `train_loop_config` of a script.
        in_script: Ray itself would call it: a function that takes no argument is called without,
            and one that needs one argument gets all of the config.

    Raises:
        FunctionError: the function cannot take the config.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a callable that is not written in Python
        return function(config)
    parameters = signature.parameters.values()
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if places and places[0].name == "config":
        return function(config)
    if any(p.name == "config" and p.kind not in _VARIABLE for p in parameters):
        return function(config=config)
    needed = [p for p in places if p.default is p.empty]
    alone = len(needed) == 1 or (not places and any(p.kind is p.VAR_POSITIONAL for p in parameters))
    if not config:
        return function(config) if len(needed) == 1 else function()
    if alone and (in_script or not needed):  # such as the wrapper of a decorator
        return function(config)
    if _fits(signature, config):
        return function(**config)
    if alone or (len(places) == 1 and isinstance(places[0].default, Mapping | None)):
        return function(config)
    if not in_script:
        raise FunctionError(_misfit(function, signature, config))
    log.warning("%s", _misfit(function, signature, config))
    return function()


_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _fits(signature: inspect.Signature, config: Mapping[str, Any]) -> bool:
    """Whether the keys of the config are names of the function's parameters, and all it needs."""
    try:
        signature.bind(**config)
    except TypeError:
        return False
    return True


def _misfit(
    function: Callable[..., Any], signature: inspect.Signature, config: Mapping[str, Any]
) -> str:
    return (
        f"the training function {_name(function)}{signature} does not take the config, whose keys "
        f"are {', '.join(config)}; give it the argument `config`, or one for each key"
    )


def _refuse_unrun(function: Callable[..., Any], returned: Any) -> None:
    """Refuse a function of whose body nothing has run.

    Raises:
        FunctionError: with one sentence.
    """
    if inspect.iscoroutine(returned):
        returned.close()  # else Python warns of it
        raise FunctionError(
            f"the training function {_name(function)} is an `async def`, so nothing of it has run; "
            "make it a plain function, and call asyncio.run in it where it has to await"
        )
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise FunctionError(
            f"the training function {_name(function)} has a `yield`, so nothing of it has run; "
            "take it out, or move it into a function of its own"
        )


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))
