"""To list, show, follow and delete runs; in a cluster to submit, suspend, retry and export them."""

import json
import shlex
import sys
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..api.status import Phase
from ..client import (
    defaults,
    following,
    manifest_files,
    places,
    retried_run,
    submitting,
    yaml_text,
)
from ..client.sources import ENDED, Cluster, Source, ThisMachine
from ..local import records
from ..local.run_line import last_report, phase, progress_line, warnings
from ..local.terminal_text import cell, is_new, plain, terminal_width
from ..rendering import names
from ..rendering.defaults import names_storage
from . import views
from .common import Endpoint, Everywhere, File, Name, run_names, wide_console
from .errors import CliError, print_error, say
from .sources import cluster_of, source_of, taking


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
    app.command()(export)


@taking(source_of)
def list_runs(
    source: Source,
    everywhere: Everywhere = False,
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
        say(f"No TrainingRuns found in {source.where(everywhere)}.")
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
        say(views.why_no_ranks(run))
        return
    typer.echo(views.ranks(found, terminal_width()))
    for warning in warnings(run):
        wide_console().print(cell(warning), style="yellow", soft_wrap=True)
    for sentence in (
        views.ranks_before(run),
        views.ranks_without_steps(found, run),
        views.ranks_left_out(found, run),
    ):
        if sentence is not None:
            say(sentence)


@taking(source_of)
def top(source: Source, name: Name) -> None:
    """Show what each rank measures, renewed each second until the run ends; in a pipe once."""
    followed = source.followed(name)
    # Rich draws nothing anew in a terminal that cannot move its cursor.
    if not sys.stdout.isatty() or Console().is_dumb_terminal:
        typer.echo(views.top(followed.ask(), datetime.now(), terminal_width()))
        return
    run = None
    with Live(auto_refresh=False) as live:
        try:
            for run in following.states(followed):
                frame = views.top(run, datetime.now(), terminal_width())
                live.update(Text(frame, overflow="fold"), refresh=True)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None
    if run is None or phase(run) not in followed.ends:
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
        say(f"No trial of {name} has begun.")
        return
    typer.echo(views.trials(found, best, metric, terminal_width()))
    for line in views.trial_failures(found):
        wide_console().print(cell(line), style="red", soft_wrap=True)
    if any(trial["number"] == best for trial in found):
        typer.echo(views.best_trial(found, best))


@taking(cluster_of)
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
    lookup = defaults.where_storage_is_missing(lambda: cluster.kube, print_error)
    found = manifest_files.read(file, lookup)
    run = found.only_run()
    named = found.manifests[0]["metadata"].get("namespace")
    if cluster.namespace and named and cluster.namespace != named:
        raise CliError(
            f"{found.name}: metadata.namespace is {named}, and --namespace is {cluster.namespace}; "
            "leave one of them out"
        )
    submission = submitting.Submission.prepare(found, code, requirements, file)
    cluster = Cluster(cluster.namespace or named, cluster.context)
    submission.apply(cluster.kube, endpoint, typer.echo)
    if follow:
        _follow(cluster.followed(run.metadata.name), run.metadata.name, known=True)


@taking(source_of)
def watch(source: Source, name: Name) -> None:
    """Follow a TrainingRun until it ends; exit code 0 if it succeeded, else 1."""
    _follow(source.followed(name), name)


@taking(source_of)
def events(source: Source, name: Name) -> None:
    """Show the Events of a TrainingRun that the API server still has, the last one last.

    With --local: what the drivers of the run have recorded.
    """
    found, why_none = places.events(source, name), "the API server keeps them for an hour"
    if isinstance(source, ThisMachine):
        why_none = "its drivers have recorded nothing"
    if not found:
        say(f"There are no events of {name}: {why_none}.")
        return
    typer.echo(views.events(found, datetime.now(UTC)))


@taking(source_of)
def suspend(source: Source, name: Name) -> None:
    """Have a TrainingRun save a checkpoint and free its pods, until `resume`.

    With --local: have the latest run of that name save a checkpoint and end, as Ctrl-C does, and
    wait for it.
    """
    if isinstance(source, ThisMachine):
        own, run = source.own_run(name)
        records.stop(own)
        run = records.read(own) or run
        again = f"`trainingrun run FILE --local --folder {shlex.quote(str(own))} --resume`"
        continues = f"; {again} continues" if phase(run) == Phase.SUSPENDED else ""
        typer.echo(f"{own} has ended: {progress_line(run)}{continues}")
        return
    source.set_suspend(name, True)
    typer.echo(f"{name} is asked to suspend: it saves a checkpoint, and then frees its pods")


@taking(cluster_of)
def resume(cluster: Cluster, name: Name) -> None:
    """Have a suspended TrainingRun continue from its last checkpoint."""
    cluster.set_suspend(name, False)
    typer.echo(f"{name} is asked to continue from its last checkpoint")


@taking(source_of)
def delete(
    source: Source,
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --local: do not ask.")] = False,
) -> None:
    """Delete a TrainingRun and its pods; its folder in the bucket is kept.

    With --local: delete the folder of the latest run of that name, with its checkpoints and logs.
    """
    if isinstance(source, ThisMachine):
        own, _ = source.own_run(name)
        if not yes and not typer.confirm(f"Delete {own} with its checkpoints and logs?"):
            raise CliError("nothing is deleted")
        records.delete(own)  # and not the latest run, which may be another one by now
        typer.echo(f"{own} deleted")
        return
    run = source.run(name)
    source.delete(name)
    kept = f"; {names.folder_of(run)} is kept" if names_storage(run) else ""  # else it never began
    typer.echo(f"{name} deleted from namespace {source.kube.namespace}{kept}")


@taking(cluster_of)
def retry(
    cluster: Cluster,
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
    manifest = cluster.retried(name, new_name, step, settings or [], say=print_error)
    if dry_run:
        typer.echo(yaml_text.dump(manifest), nl=False)
        return
    cluster.kube.create(manifest)
    typer.echo(f"{manifest['metadata']['name']} created; it begins {retried_run.begins(manifest)}")


@taking(cluster_of)
def export(
    cluster: Cluster,
    name: Annotated[
        list[str] | None,
        typer.Argument(
            help="Names of TrainingRuns.",
            autocompletion=run_names,
            show_default="all that have not ended",
        ),
    ] = None,
    everywhere: Everywhere = False,
) -> None:
    """Print runs as YAML with which they go on in another cluster, each from its checkpoint."""
    if name and everywhere:
        raise CliError(f"--all-namespaces is for all runs; leave it out, or {' '.join(name)}")
    runs = [cluster.run(each) for each in name] if name else cluster.runs(everywhere)
    if not name:
        runs = [run for run in runs if _goes_on(run)]
    if not runs:
        say(f"In {cluster.where(everywhere)} is no run that has not ended.")
        return
    manifests = [retried_run.exported(run) for run in runs]
    typer.echo(yaml_text.dump(*manifests), nl=False)
    for manifest in manifests:
        where = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        say(f"{where} begins {retried_run.begins(manifest)}")
        uri = str(manifest["spec"]["storage"].get("uri"))
        if uri.startswith(("file:", "pvc:")):
            say(f"{where} needs {uri} with what is in it, also where it goes")


def _goes_on(run: dict[str, Any]) -> bool:
    """Whether a run has not ended, and is not being deleted."""
    has_ended = (run.get("status") or {}).get("phase") in ENDED
    return not has_ended and not run["metadata"].get("deletionTimestamp")


def _follow(followed: following.Followed, name: str, known: bool = False) -> None:
    """Print a line for each change until the run ends; `known` as of `following.looks`.

    Raises:
        RunError: it has not succeeded, or was deleted.
    """
    shown: str | None = None
    warned: set[str] = set()
    run: dict[str, Any] | None = None
    for run in following.states(followed, known):
        now = datetime.now(UTC)
        line = progress_line(run, now=now)
        # That a run is silent is said once, and not again each minute.
        if (state := line.replace(last_report(run, now), "")) != shown:
            shown = state
            typer.echo(f"{datetime.now():%H:%M:%S} {name}: {line}")
        for warning in filter(None, [views.unseen(run, now), *warnings(run, now)]):
            if is_new(warning, warned):
                typer.echo(f"{datetime.now():%H:%M:%S} {name}: {plain(warning)}")
    following.ended(name, run, followed.ends)
