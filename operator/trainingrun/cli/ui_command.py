"""`ui`: a page of all runs, and one of each, for a browser of this machine."""

import threading
from typing import Annotated

import typer

from ..client.sources import Cluster
from .common import Endpoint, Everywhere
from .errors import say
from .local_server import serving
from .sources import cluster_of, taking


def add_to(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(ui)


@taking(cluster_of)
def ui(
    cluster: Cluster,
    everywhere: Everywhere = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of this machine.", show_default="a free one")
    ] = 0,
    endpoint: Endpoint = None,
) -> None:
    """Show TrainingRuns in a browser of this machine, with your rights, until Ctrl-C."""
    where = cluster.where(everywhere)
    cluster.kube  # noqa: B018 - a kubeconfig that is missing is said now
    from .ui.pages import Pages  # with jinja2 and the client, which take long to load
    from .ui.server import Ui

    server = Ui(port, Pages(cluster, everywhere, endpoint))
    try:
        with serving(server):
            typer.echo(f"TrainingRuns in {where}: {server.link()}")
            say("One browser can open it, once; Ctrl-C ends it.")
            threading.Event().wait()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
