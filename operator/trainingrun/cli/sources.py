"""Where a command looks for runs, and what it is given of its options."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ..client.sources import Cluster, Source, ThisMachine
from .common import Context, Folder, Local, Namespace
from .errors import one_sentence


def cluster_of(namespace: Namespace = None, context: Context = None) -> Cluster:
    """The cluster whose runs a command changes."""
    return Cluster(namespace, context)


def source_of(
    namespace: Namespace = None,
    local: Local = False,
    folder: Folder = None,
    context: Context = None,
) -> Source:
    """Where a command looks for runs."""
    return ThisMachine(folder) if local or folder is not None else Cluster(namespace, context)


def taking(make: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of commands: what `make` returns is the first argument of the command.

    On the command line are the parameters of `make` instead, after the command's own. Whatever
    goes wrong in either ends the command with a sentence.
    """
    wanted = inspect.signature(make).parameters

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        _, *own = inspect.signature(command).parameters.values()

        @functools.wraps(command)
        def with_options(**given: Any) -> Any:
            with one_sentence():
                return command(make(**{each: given.pop(each) for each in wanted}), **given)

        parameters = sorted(
            [*own, *wanted.values()], key=lambda each: each.default is not inspect.Parameter.empty
        )
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {each.name: each.annotation for each in parameters}
        del with_options.__wrapped__  # typer reads the signature of what is wrapped
        return with_options

    return decorate
