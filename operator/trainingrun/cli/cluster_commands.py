"""To list, show, follow and delete runs; in a cluster to submit, suspend and retry them, too."""

import json
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from ..api.status import Phase
from ..local import records
from ..local.terminal_text import cell, is_new, plain, terminal_width
from ..rendering import names
from . import following, manifest_files, result_commands, retried_run, submitting, views, yaml_text
from .common import (
    ENDED,
    Endpoint,
    File,
    Name,
    connect,
    wide_console,
)
from .errors import CliError, NotFoundError
from .sources import Cluster, Source, ThisMachine, source_of, taking

if TYPE_CHECKING:
    from .kube import Kube


class Format(StrEnum):
    """How objects are printed."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[Format, typer.Option("--output", "-o", help="text, json or yaml.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("list")(list_runs)
    app.command()(get)
    app.command()(ranks)
    app.command()(top)
    app.command()(sweep)
    app.command()(submit)
    app.command()(watch)
    app.command()(events)
    app.command()(suspend)
    app.command()(resume)
    app.command()(delete)
    app.command()(retry)


@taking(source_of)
def list_runs(
    source: Source,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")
    ] = False,
    output: Output = Format.TEXT,
) -> None:
    """List TrainingRuns with their phase and progress."""
    found = source.runs(everywhere)
    if output is not Format.TEXT:
        items = [_without_managed_fields(run) for run in found]
        _print_object({"apiVersion": "v1", "kind": "List", "items": items}, output)
        return
    if not found:
        # As kubectl: stdout stays empty.
        typer.echo(f"No TrainingRuns found in {source.where(everywhere)}.", err=True)
        return
    typer.echo(views.listing(found, datetime.now(UTC), everywhere, terminal_width()))


@taking(source_of)
def get(source: Source, name: Name, output: Output = Format.TEXT) -> None:
    """Show the status of one TrainingRun and what its disruptions cost."""
    found = source.run(name)
    if output is Format.TEXT:
        typer.echo(views.details(found, terminal_width()))
    else:
        _print_object(_without_managed_fields(found), output)


def _without_managed_fields(run: dict[str, Any]) -> dict[str, Any]:
    """As kubectl prints an object."""
    metadata = {key: value for key, value in run["metadata"].items() if key != "managedFields"}
    return {**run, "metadata": metadata}


def _print_object(found: Any, output: Format) -> None:
    text = yaml_text.dump(found) if output is Format.YAML else json.dumps(found, indent=2) + "\n"
    typer.echo(text, nl=False)


@taking(source_of)
def ranks(source: Source, name: Name, output: Output = Format.TEXT) -> None:
    """Show what each rank measures: its steps, what it waits for, and its memory."""
    run = source.run(name)
    progress = (run.get("status") or {}).get("progress") or {}
    found = progress.get("ranks") or []
    if output is not Format.TEXT:
        _print_object(found, output)
        return
    if not found:
        typer.echo(views.why_no_ranks(run), err=True)
        return
    typer.echo(views.ranks(found, terminal_width()))
    for warning in views.warnings(run):
        wide_console().print(cell(warning), style="yellow", soft_wrap=True)
    if (needed := views.ranks_without_steps(found)) is not None:
        typer.echo(needed, err=True)
    if (rest := views.ranks_left_out(found, run)) is not None:
        typer.echo(rest, err=True)


@taking(source_of)
def top(source: Source, name: Name) -> None:
    """Show what each rank measures, renewed each second until the run ends; in a pipe once."""
    followed = source.followed(name)
    if not sys.stdout.isatty():
        typer.echo(views.top(followed.ask(), datetime.now(), None))
        return
    run = None
    with Live(auto_refresh=False) as live:
        try:
            for run in following.states(followed):
                frame = views.top(run, datetime.now(), terminal_width())
                live.update(Text(frame, overflow="fold"), refresh=True)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
    if run is None or views.phase(run) not in followed.ends:
        raise following.deleted(name)


@taking(source_of)
def sweep(source: Source, name: Name) -> None:
    """Show the trials of a sweep, and the best one's config."""
    run = source.run(name)
    settings = run["spec"].get("sweep")
    if settings is None:
        raise CliError(f"TrainingRun {name} has no spec.sweep; `get` shows its status")
    status = (run.get("status") or {}).get("sweep") or {}
    metric, found, best = settings["metric"], status.get("trials", []), status.get("best")
    if not found:
        typer.echo(f"No trial of {name} has begun.", err=True)
        return
    typer.echo(views.trials(found, best, metric, terminal_width()))
    for line in views.trial_failures(found):
        wide_console().print(cell(line), style="red", soft_wrap=True)
    if any(trial["number"] == best for trial in found):
        typer.echo(views.best_trial(found, best))


@taking(Cluster)
def submit(
    cluster: Cluster,
    file: File,
    code: Annotated[
        Path | None,
        typer.Option(help="Folder to pack, without what .gitignore names, for training.code."),
    ] = None,
    requirements: Annotated[
        Path | None, typer.Option(help="requirements.txt for training.requirements.")
    ] = None,
    endpoint: Endpoint = None,
    follow: Annotated[
        bool, typer.Option("--watch/--no-watch", help="Follow the run until it ends.")
    ] = True,
) -> None:
    """Upload code to the run's bucket, apply the run, and follow it as `watch` does."""
    found = manifest_files.read(file)
    run = found.only_run()
    named = found.manifests[0]["metadata"].get("namespace")
    if cluster.namespace and named and cluster.namespace != named:
        raise CliError(
            f"{found.name}: metadata.namespace is {named}, and --namespace is {cluster.namespace}; "
            "leave one of them out"
        )
    submission = submitting.Submission.prepare(found, code, requirements, file)
    cluster = Cluster(cluster.namespace or named, cluster.context)
    kube = cluster.kube
    _refuse_ended(kube, run.metadata.name)
    submission.upload(endpoint)
    for config_map in submission.config_maps:
        kube.apply_config_map(config_map)
        typer.echo(f"ConfigMap {config_map['metadata']['name']} applied")
    kube.apply(submission.manifest)
    typer.echo(f"{run.metadata.name} applied to namespace {kube.namespace}")
    if follow:
        _follow(cluster.followed(run.metadata.name), run.metadata.name)


@taking(source_of)
def watch(source: Source, name: Name) -> None:
    """Follow a TrainingRun until it ends; exit code 0 if it succeeded, else 1."""
    _follow(source.followed(name), name)


@taking(source_of)
def events(source: Source, name: Name) -> None:
    """Show the Events of a TrainingRun that the API server still has, the last one last.

    With --local: what the drivers of the run have recorded.
    """
    source.run(name)
    if isinstance(source, ThisMachine):
        found, why_none = result_commands.events(source, name), "its drivers have recorded nothing"
    else:
        found, why_none = source.kube.events(name), "the API server keeps them for an hour"
    if not found:
        typer.echo(f"There are no events of {name}: {why_none}.", err=True)
        return
    typer.echo(views.events(found, datetime.now(UTC)))


@taking(connect)
def suspend(kube: "Kube", name: Name) -> None:
    """Have a TrainingRun save a checkpoint and free its pods, until `resume`."""
    _set_suspend(kube, name, True)
    typer.echo(f"{name} is asked to suspend: it saves a checkpoint, and then frees its pods")


@taking(connect)
def resume(kube: "Kube", name: Name) -> None:
    """Have a suspended TrainingRun continue from its last checkpoint."""
    _set_suspend(kube, name, False)
    typer.echo(f"{name} is asked to continue from its last checkpoint")


def _set_suspend(kube: "Kube", name: str, wanted: bool) -> None:
    run = kube.run(name)
    status = run.get("status") or {}
    if (phase := status.get("phase")) in ENDED:
        begins = "from its checkpoint" if status.get("checkpoint") else "with its spec"
        raise CliError(
            f"TrainingRun {name} in namespace {kube.namespace} has ended ({phase}); `retry` begins "
            f"a run {begins}"
        )
    if run["spec"].get("suspend", False) is wanted:
        said = "asked to suspend already" if wanted else _why_not_resumed(run)
        raise CliError(f"TrainingRun {name} in namespace {kube.namespace} is {said}")
    kube.set_suspend(name, wanted)


def _why_not_resumed(run: dict[str, Any]) -> str:
    if (views.condition(run, "Suspended") or {}).get("reason") == "BudgetSpent":
        return "suspended by its budget; raise spec.budget.amount to continue"
    return "not suspended"


@taking(source_of)
def delete(
    source: Source,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --local: do not ask.")] = False,
) -> None:
    """Delete a TrainingRun and its pods; its folder in the bucket is kept.

    With --local: delete the folder of the latest run of that name, with its checkpoints and logs.
    """
    run = source.run(name)
    if isinstance(source, ThisMachine):
        own = source.own_folder(name)
        if not yes and not typer.confirm(f"Delete {own} with its checkpoints and logs?"):
            raise CliError("nothing is deleted")
        records.delete(own)
        typer.echo(f"{own} deleted")
        return
    source.kube.delete(name)
    typer.echo(
        f"{name} deleted from namespace {source.kube.namespace}; {names.folder_of(run)} is kept"
    )


@taking(connect)
def retry(
    kube: "Kube",
    name: Name,
    new_name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the new run.", show_default="NAME-retry-1, -2, …"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Change a field of the spec, such as training.config.lr=0.01; repeatable.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=0, help="Step of the checkpoint.", show_default="the newest intact one"),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the new run instead of creating it.")
    ] = False,
) -> None:
    """Create a run with the spec of another one, which begins from that one's checkpoint."""
    former = kube.run(name)
    if new_name is None:
        taken = [run["metadata"]["name"] for run in kube.runs(everywhere=False)]
        new_name = retried_run.free_name(name, taken)
    manifest = retried_run.retried(former, new_name, step, settings or [])
    if dry_run:
        typer.echo(yaml_text.dump(manifest), nl=False)
        return
    kube.create(manifest)
    typer.echo(f"{new_name} created; it begins {retried_run.begins(manifest)}")


def _refuse_ended(kube: "Kube", name: str) -> None:
    """A run that has ended is not begun again by applying it: its former result would be shown."""
    try:
        phase = (kube.run(name).get("status") or {}).get("phase")
    except NotFoundError:
        return
    if phase in ENDED:
        raise CliError(
            f"TrainingRun {name} in namespace {kube.namespace} has ended ({phase}); delete it, or "
            "choose another name"
        )


def _follow(followed: following.Followed, name: str) -> None:
    """Print a line for each change until the run ends.

    Raises:
        CliError: it has not succeeded, or was deleted.
    """
    shown: str | None = None
    warned: set[str] = set()
    for run in following.states(followed):
        if (line := views.progress_line(run)) != shown:
            shown = line
            typer.echo(f"{datetime.now():%H:%M:%S} {name}: {line}")
        for warning in views.warnings(run):
            if is_new(warning, warned):
                typer.echo(f"{datetime.now():%H:%M:%S} {name}: {plain(warning)}")
        phase = views.phase(run)
        if phase == Phase.SUCCEEDED:
            return
        if phase == Phase.FAILED:
            raise CliError(f"{name} failed: {plain(views.failure(run))}")
        if phase == Phase.DELETING:
            raise CliError(
                f"{name} is deleted; finalizers hold the object: {views.finalizers(run)}"
            )
        if phase in followed.ends:
            raise CliError(
                f"{name} is suspended: {plain(views.why_suspended(run))}; `trainingrun run FILE"
                f"{views.options(run)} --resume` continues"
            )
    raise following.deleted(name)
