"""Whether what is installed works for this user: `doctor`."""

from typing import Annotated

import typer

from ..client.checks import Finding, Verdict, of_bucket, of_cluster
from ..client.sources import Cluster
from ..local.terminal_text import plain
from .common import Context, Endpoint, Namespace
from .errors import one_sentence


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(doctor)


def doctor(
    storage: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Bucket to check, such as s3://bucket/folder."),
    ] = None,
    endpoint: Endpoint = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Check what a run needs of the cluster, of the bucket and of this user's rights."""
    wrong = False
    with one_sentence():
        for found in (*of_cluster(Cluster(namespace, context)), of_bucket(storage, endpoint)):
            _print(found)
            wrong = wrong or found.verdict is Verdict.WRONG
    raise typer.Exit(1 if wrong else 0)


def _print(found: Finding) -> None:
    color = {Verdict.OK: "green", Verdict.WRONG: "red", Verdict.UNKNOWN: "yellow"}[found.verdict]
    verdict = typer.style(f"{found.verdict:<7}", fg=color)
    typer.echo(f"{verdict}  {found.what}: {plain(found.sentence)}")
