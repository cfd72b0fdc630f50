"""Arguments and options that several commands have, and what a shell offers for them."""

import contextlib
import re
from pathlib import Path
from typing import Annotated

import typer

from ..rendering import platforms
from .terminal import CliError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|)")


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


def parse_duration(text: str) -> float:
    """Seconds in `15s`, `2m`, `1.5h` or plain `15`.

    Raises:
        ValueError: It is none of these; the text says what to write.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text} is no duration; write for example 15s, 2m or 1h")
    return float(found[1]) * _UNITS[found[2]]


File = Annotated[Path, typer.Argument(help="YAML file with one TrainingRun; - is stdin.")]
Name = Annotated[str, typer.Argument(help="Name of the TrainingRun.", autocompletion=run_names)]
NameOrUri = Annotated[
    str,
    typer.Argument(
        help="Name of the TrainingRun, or URI of its folder in the bucket.",
        autocompletion=run_names,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace.", show_default="kubeconfig's"),
]
Context = Annotated[
    str | None, typer.Option(help="Context of the kubeconfig.", show_default="the current one")
]
Local = Annotated[bool, typer.Option("--local", help="A run of this machine, not of a cluster.")]
Folder = Annotated[
    Path | None,
    typer.Option(help="Of the run of this machine.", show_default="trainingrun-local/NAME"),
]
Endpoint = Annotated[
    str | None, typer.Option(help="URL of the bucket's service as this machine reaches it.")
]
Step = Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint.")]
Trial = Annotated[
    int | None,
    typer.Option(min=1, help="Number of the trial of a sweep.", show_default="the best one"),
]
