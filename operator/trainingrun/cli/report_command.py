"""`report`: what happened to a run, for somebody who was not there."""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from . import support_archive
from .common import CliError, Context, Name, Namespace, connect, one_sentence


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(report)


def report(
    name: Name,
    to: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="NAME-<time>.tar.gz")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write one archive about a TrainingRun for a bug report, without secrets."""
    with one_sentence():
        kube, now = connect(context, namespace), datetime.now(UTC)
        content, not_read = support_archive.collect(kube, kube.run(name), now)
        target = to or Path(f"{name}-{now:%Y%m%dT%H%M%SZ}.tar.gz")
        _write(target, content)
    for sentence in not_read:
        typer.echo(f"not read: {sentence}", err=True)
    typer.echo(f"{target} written; read it before you pass it on")


def _write(target: Path, content: bytes) -> None:
    """Write a file that is the caller's alone, and only where there is none.

    Raises:
        CliError: It cannot be written; what was begun is deleted.
    """
    try:
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CliError(f"{target} is there already; name another file with --to") from None
    except OSError as error:
        raise CliError(f"{target} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
    except OSError as error:
        with contextlib.suppress(OSError):
            target.unlink()
        raise CliError(f"{target} cannot be written: {error.strerror}") from None
