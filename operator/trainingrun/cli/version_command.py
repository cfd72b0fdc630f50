"""What is installed, here and in the cluster: `version`."""

from typing import Annotated

import typer

from ..api.errors import RunError
from ..client.installation import in_cluster, own_version
from ..local.terminal_text import pairs
from .common import Context, connect
from .errors import say


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("version")(version_command)


def version_command(
    client: Annotated[
        bool, typer.Option("--client", help="This command's alone, without a request.")
    ] = False,
    context: Context = None,
) -> None:
    """Print the versions of this command and, where a cluster answers, of what it has."""
    own = ("trainingrun", own_version())
    typer.echo(pairs([own]))  # before the cluster is asked, which may not answer for long
    if client:
        return
    try:
        found = in_cluster(connect(context=context))
    except RunError as error:
        say(str(error))
    else:
        typer.echo(pairs([own, *found]).partition("\n")[2])  # aligned with the line above
