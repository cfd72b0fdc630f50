"""`trainingrun …`, also `kubectl trainingrun …`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer

from .. import rendering
from ..api.defaults import AppliedDefaults
from ..api.status import RestoredFrom
from ..api.v1alpha1 import TrainingRun
from ..client import manifest_files, yaml_text
from ..client.defaults import Lookup, no_defaults, of_cluster
from ..client.installation import own_version
from ..client.manifest_files import Change
from ..local import Options, run_locally
from ..local.display import SteadyStream
from ..rendering import platforms
from . import (
    cluster_commands,
    cost_command,
    doctor,
    log_command,
    pod_commands,
    report_command,
    result_commands,
    trace_command,
    ui_command,
    version_command,
)
from .common import Context, File, connect, seconds, wide_console
from .errors import CliError, one_sentence, print_error

app = typer.Typer(
    name="trainingrun",
    help="Distributed training that continues when machines come and go.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

_DEFAULTS = rendering.RenderSettings()

_SOME_UID = "00000000-0000-0000-0000-000000000000"
"""In place of the UID that the API server gives."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trainingrun {own_version()}")
        raise typer.Exit


def _platform_names(incomplete: str) -> list[str]:
    return [name for name in platforms.KNOWN if name.startswith(incomplete)]


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Distributed training that continues when machines come and go."""


def _with_uid(found: TrainingRun) -> TrainingRun:
    """The run with a UID, as the API server would give it one; its manifests need it.

    The folder of a run that `storage.restoreFrom` names gets that UID too.
    """
    metadata = found.metadata.model_copy(update={"uid": found.metadata.uid or _SOME_UID})
    storage, status = found.spec.storage, found.status
    if storage.restore_from is not None and storage.restore_from.run is not None:
        uri = rendering.names.folder_below(storage.uri, storage.restore_from.run, _SOME_UID)
        status = status.model_copy(update={"restored_from": RestoredFrom(uri=uri)})
    return found.model_copy(update={"metadata": metadata, "status": status})


@app.command()
def run(
    file: File,
    local: Annotated[bool, typer.Option("--local", help="Train on this machine.")] = False,
    preempt_after: Annotated[
        float | None,
        typer.Option(
            parser=seconds,
            metavar="DURATION",
            help="Preempt a node so long after the first step, such as 15s.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="Takes the bucket's place.", show_default="trainingrun-local/NAME"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Resume the latest run in the folder.")
    ] = False,
) -> None:
    """Train a TrainingRun on this machine, without Kubernetes."""
    with one_sentence():
        if not local:
            raise CliError(
                f"say --local to train on this machine, or use kubectl apply -f {file} for a "
                "cluster"
            )
        found = manifest_files.read(file)
        beside = file.absolute().parent if str(file) != "-" else None
        options = Options(folder, preempt_after, resume, beside)
        stream = SteadyStream(sys.stdout)
        console = wide_console(cast(TextIO, stream))
        try:
            succeeded = run_locally(found.only_run(), found.config_maps, options, console)
        finally:
            stream.settle()
    raise typer.Exit(0 if succeeded else 1)


OfDefaults = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace whose TrainingDefaults count.",
        show_default="none, and no cluster",
    ),
]


def _defaults_of(namespace: str | None, context: str | None) -> tuple[Lookup, Change]:
    """Where the defaults of a file's runs are looked up, and what gives a run that namespace."""
    if namespace is None and context is None:
        return no_defaults, lambda manifest: manifest
    kube = connect(namespace, context)

    def within(manifest: Any) -> Any:
        metadata = manifest.get("metadata") if isinstance(manifest, Mapping) else None
        if not isinstance(metadata, Mapping) or metadata.get("namespace"):
            return manifest
        return {**manifest, "metadata": {**metadata, "namespace": kube.namespace}}

    return of_cluster(kube, print_error), within


def _print_origins(applied: AppliedDefaults | None) -> None:
    for source in applied.sources if applied else ():
        if source.fields:
            typer.echo(f"  from {source.kind} {source.name}: {', '.join(source.fields)}")


@app.command()
def validate(
    files: Annotated[list[Path], typer.Argument(help="YAML files; - is stdin.")],
    namespace: OfDefaults = None,
    context: Context = None,
) -> None:
    """Say what is wrong in files, without a cluster; exit code 1 if anything is.

    With --namespace or --context: as runs of that namespace, with its TrainingDefaults.
    """
    wrong = False
    with one_sentence():
        lookup, within = _defaults_of(namespace, context)
    for file in files:
        with one_sentence():
            found = manifest_files.read(file, lookup, within)
        for problem in found.problems:
            print_error(problem)
        wrong = wrong or bool(found.problems)
        if not found.problems:
            names = ", ".join(each.metadata.name for each in found.runs)
            typer.echo(f"{found.name}: {names} is valid")
            for applied in found.defaults:
                _print_origins(applied)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def render(
    file: File,
    platform: Annotated[
        str,
        typer.Option(help="generic, gke, eks, karpenter or aks.", autocompletion=_platform_names),
    ] = _DEFAULTS.platform,
    attempt: Annotated[int, typer.Option(min=1, help="Number of the attempt.")] = 1,
    image: Annotated[
        str, typer.Option(help="Training image of runs that name none.")
    ] = _DEFAULTS.image,
    namespace: OfDefaults = None,
    context: Context = None,
) -> None:
    """Print the manifests of an attempt as the operator would apply them.

    With --namespace or --context: of a run of that namespace, with its TrainingDefaults.
    """
    with one_sentence(ValueError):
        lookup, within = _defaults_of(namespace, context)
        found = _with_uid(manifest_files.read(file, lookup, within).only_run())
        settings = rendering.RenderSettings(platform=platforms.known_name(platform), image=image)
        manifests = [
            rendering.token_secret(found, settings.token_key),
            *rendering.support_objects(found, settings),
            rendering.attempt(found, attempt, settings),
        ]
    typer.echo(yaml_text.dump(*manifests), nl=False)


cluster_commands.add_to(app)
cost_command.add_to(app)
pod_commands.add_to(app)
report_command.add_to(app)
result_commands.add_to(app)
trace_command.add_to(app)
ui_command.add_to(app)
version_command.add_to(app)
doctor.add_to(app)
log_command.add_to(app)
