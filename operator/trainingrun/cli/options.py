"""Arguments and options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

from . import completion

File = Annotated[Path, typer.Argument(help="YAML file with one TrainingRun; - is stdin.")]
Name = Annotated[
    str, typer.Argument(help="Name of the TrainingRun.", autocompletion=completion.run_names)
]
NameOrUri = Annotated[
    str,
    typer.Argument(
        help="Name of the TrainingRun, or URI of its folder in the bucket.",
        autocompletion=completion.run_names,
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
