"""What a shell offers where a name is to be typed; nothing where the cluster does not answer."""

import contextlib
from pathlib import Path

import typer

from ..rendering import platforms
from .errors import CliError


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """TrainingRuns of the namespace that the line names so far, or with --local of this folder."""
    found: list[str] = []
    if ctx.params.get("local"):
        found = [path.parent.name for path in Path("trainingrun-local").glob("*/latest.json")]
    else:
        with contextlib.suppress(CliError):
            # Imported late: the client takes a second to load.
            from .kube import Kube

            kube = Kube(ctx.params.get("context"), ctx.params.get("namespace"))
            found = [run["metadata"]["name"] for run in kube.runs(everywhere=False)]
    return sorted(name for name in found if name.startswith(incomplete))


def platform_names(incomplete: str) -> list[str]:
    """The clouds that are known."""
    return [name for name in platforms.KNOWN if name.startswith(incomplete)]
