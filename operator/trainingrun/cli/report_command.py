"""`report`: what happened to a run, for somebody who was not there."""

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from ..client import run_page
from ..client.places import in_cluster
from ..client.sources import Source, ThisMachine
from . import support_archive
from .common import Endpoint, NameOrUri, Trial
from .errors import CliError, say
from .result_commands import place_in
from .sources import source_of, taking


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(report)


@taking(source_of)
def report(
    source: Source,
    name: NameOrUri,
    html: Annotated[
        bool,
        typer.Option("--html", help="Write one page for a browser, also without the cluster."),
    ] = False,
    to: Annotated[
        Path | None,
        typer.Option(help="File to write.", show_default="NAME-<time>.tar.gz or .html"),
    ] = None,
    trial: Trial = None,
    endpoint: Endpoint = None,
) -> None:
    """Write one archive about a TrainingRun for a bug report, without secrets, or one page."""
    now = datetime.now(UTC)
    if html:
        if "://" in name or isinstance(source, ThisMachine):
            own_name, text = run_page.of(place_in(source, name, trial, endpoint))
        else:
            own_name, run = name, source.run(name)
            text = run_page.of_run(run, lambda: in_cluster(run, [], endpoint, trial))
        target = to or Path(f"{own_name}-{now:%Y%m%dT%H%M%SZ}.html")
        write_new(target, text.encode())
        typer.echo(f"{target} written")
        return
    if "://" in name or isinstance(source, ThisMachine) or trial:
        raise CliError("an archive is of a run in the cluster; --html writes a page of a folder")
    content, not_read = support_archive.collect(source.kube, source.run(name), endpoint, now)
    target = to or Path(f"{name}-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    write_new(target, content)
    for sentence in not_read:
        say(f"not read: {sentence}")
    typer.echo(f"{target} written; read it before you pass it on")


def write_new(target: Path, content: bytes, option: str = "--to") -> None:
    """Write a file that is the caller's alone, and only where there is none.

    Args:
        target: The file.
        content: All of it.
        option: The one that names another file.

    Raises:
        CliError: It cannot be written; what was begun is deleted.
    """
    try:
        opened = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise CliError(f"{target} is there already; name another file with {option}") from None
    except OSError as error:
        raise CliError(f"{target} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
    except OSError as error:
        with contextlib.suppress(OSError):
            target.unlink()
        raise CliError(f"{target} cannot be written: {error.strerror}") from None
