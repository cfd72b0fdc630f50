"""What all commands share: their options, the cluster, and where they print."""

import contextlib
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console

from ..api.errors import RunError

if TYPE_CHECKING:
    from ..client.kube import Kube


_COMPLETION_TIMEOUT_S = 1.0
"""How long a shell waits for the names of runs."""

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_DAYS = 36500
"""Of a duration; a time so long ago is still a date."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d|)")


def seconds(text: str) -> float:
    """Seconds in `15s`, `2m`, `1.5h` or plain `15`; for an option.

    Raises:
        typer.BadParameter: It is none of these, or longer than a hundred years.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text} is no duration; write for example 15s, 2m, 1h or 7d")
    duration = float(found[1]) * _UNITS[found[2]]
    if duration > _LONGEST_DAYS * _UNITS["d"]:
        raise typer.BadParameter(f"{text} is too long; write at most {_LONGEST_DAYS}d")
    return duration


def wide_console(stream: TextIO | None = None) -> Console:
    """Standard output; in a pipe as wide as a line may get, for rich would cut it at 80.

    Args:
        stream: Another one to write to.
    """
    console = Console(file=stream)
    return console if console.is_terminal else Console(file=stream, width=1000)


def run_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """TrainingRuns of the namespace that the line names so far, or with --local of this folder.

    None where the cluster does not answer soon: the shell waits for this at the key that is typed.
    """
    found: list[str] = []
    if ctx.params.get("local"):
        found = [path.parent.name for path in Path("trainingrun-local").glob("*/latest.json")]
    else:
        connect_to = ctx.params.get("namespace"), ctx.params.get("context")

        def list_runs() -> None:
            with contextlib.suppress(RunError):
                runs = connect(*connect_to).runs(everywhere=False)
                found.extend(run["metadata"]["name"] for run in runs)

        from ..client import kube as kube  # not part of the wait

        # Neither a name's resolution nor a kubeconfig's command for credentials has a timeout.
        thread = threading.Thread(target=list_runs, daemon=True)
        thread.start()
        thread.join(_COMPLETION_TIMEOUT_S)
    return sorted(name for name in found if name.startswith(incomplete))


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
Local = Annotated[bool, typer.Option("--local", help="Of this machine, not of a cluster.")]
Folder = Annotated[
    Path | None,
    typer.Option(help="Of the runs of this machine.", show_default="trainingrun-local/NAME"),
]
Endpoint = Annotated[
    str | None, typer.Option(help="URL of the bucket's service as this machine reaches it.")
]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")]
Step = Annotated[int | None, typer.Option(min=0, help="Step of the checkpoint.")]
Trial = Annotated[
    int | None,
    typer.Option(min=1, help="Number of the trial of a sweep.", show_default="the best one"),
]


def connect(namespace: Namespace = None, context: Context = None) -> "Kube":
    """The cluster that kubeconfig names."""
    # Imported late: the client takes a second to load, and `validate` needs no cluster.
    from ..client.kube import Kube

    return Kube(context, namespace)
