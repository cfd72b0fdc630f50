"""What needs a cluster: to list, show, follow, submit, suspend, delete and retry runs."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.text import Text

from ..local import LocalError
from ..local.folder import latest_ranks, latest_sweep, root_of
from ..local.terminal_text import cell, is_new, plain, terminal_width
from ..rendering import names
from . import manifest_files, retried_run, submitting, views, yaml_text
from .common import (
    ENDED,
    CliError,
    Context,
    Endpoint,
    File,
    Folder,
    Local,
    Name,
    Namespace,
    connect,
    one_sentence,
    wide_console,
)

if TYPE_CHECKING:
    from .kube import Kube

_POLL_INTERVAL_S = 1.0
_UNREACHABLE_TIMEOUT_S = 60.0
"""How long it continues while the API server does not answer."""


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


def list_runs(
    namespace: Namespace = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")
    ] = False,
    output: Output = Format.TEXT,
    context: Context = None,
) -> None:
    """List TrainingRuns with their phase and progress."""
    with one_sentence():
        kube = connect(context, namespace)
        found = kube.runs(everywhere)
    if output is not Format.TEXT:
        items = [_without_managed_fields(run) for run in found]
        _print_object({"apiVersion": "v1", "kind": "List", "items": items}, output)
        return
    if not found:
        where = "any namespace" if everywhere else f"namespace {kube.namespace}"
        typer.echo(f"No TrainingRuns found in {where}.", err=True)  # as kubectl: stdout stays empty
        return
    typer.echo(views.listing(found, datetime.now(UTC), everywhere, terminal_width()))


def get(
    name: Name,
    namespace: Namespace = None,
    output: Output = Format.TEXT,
    context: Context = None,
) -> None:
    """Show the status of one TrainingRun and what its disruptions cost."""
    with one_sentence():
        found = connect(context, namespace).run(name)
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


def ranks(
    name: Name,
    namespace: Namespace = None,
    output: Output = Format.TEXT,
    local: Local = False,
    folder: Folder = None,
    context: Context = None,
) -> None:
    """Show what each rank measures: its steps, what it waits for, and its memory."""
    with one_sentence(LocalError):
        if local:
            run, progress = None, latest_ranks(root_of(name, folder))
        else:
            run = connect(context, namespace).run(name)
            progress = (run.get("status") or {}).get("progress") or {}
    found = progress.get("ranks") or []
    if output is not Format.TEXT:
        _print_object(found, output)
        return
    if run is not None and not found:
        typer.echo(views.why_no_ranks(run), err=True)
        return
    typer.echo(views.ranks(found, terminal_width()))
    for warning in progress.get("warnings") or []:
        wide_console().print(cell(warning), style="yellow", soft_wrap=True)
    if (needed := views.ranks_without_steps(found)) is not None:
        typer.echo(needed, err=True)
    if run is not None and (rest := views.ranks_left_out(found, run)) is not None:
        typer.echo(rest, err=True)


def top(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Show what each rank measures, renewed each second until the run ends; in a pipe once."""
    with one_sentence():
        answers = _answers(connect(context, namespace), name)
        if not sys.stdout.isatty():
            typer.echo(views.top(next(answers), datetime.now(), None))
            return
        with Live(auto_refresh=False) as live:
            try:
                for run in answers:
                    frame = views.top(run, datetime.now(), terminal_width())
                    live.update(Text(frame, overflow="fold"), refresh=True)
                    if (run.get("status") or {}).get("phase") in ENDED:
                        return
            except KeyboardInterrupt:
                raise typer.Exit(0) from None


def sweep(
    name: Name,
    namespace: Namespace = None,
    local: Local = False,
    folder: Folder = None,
    context: Context = None,
) -> None:
    """Show the trials of a sweep, and the best one's config."""
    with one_sentence(LocalError):
        if local:
            table = latest_sweep(root_of(name, folder))
            metric = table.metric
            found, best = [row.to_dict() for row in table.trials], table.best
        else:
            run = connect(context, namespace).run(name)
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


def submit(
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
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Upload code to the run's bucket, apply the run, and follow it as `watch` does."""
    with one_sentence():
        found = manifest_files.read(file)
        run = found.only_run()
        named = found.manifests[0]["metadata"].get("namespace")
        if namespace and named and namespace != named:
            raise CliError(
                f"{found.name}: metadata.namespace is {named}, and --namespace is {namespace}; "
                "leave one of them out"
            )
        submission = submitting.Submission.prepare(found, code, requirements, file)
        kube = connect(context, namespace or named)
        _refuse_ended(kube, run.metadata.name)
        submission.upload(endpoint)
        for config_map in submission.config_maps:
            kube.apply_config_map(config_map)
            typer.echo(f"ConfigMap {config_map['metadata']['name']} applied")
        kube.apply(submission.manifest)
        typer.echo(f"{run.metadata.name} applied to namespace {kube.namespace}")
        if follow:
            _follow(kube, run.metadata.name)


def watch(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Follow a TrainingRun until it ends; exit code 0 if it succeeded, 1 if it failed."""
    with one_sentence():
        _follow(connect(context, namespace), name)


def events(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Show the Events of a TrainingRun that the API server still has, the last one last."""
    with one_sentence():
        kube = connect(context, namespace)
        kube.run(name)
        found = kube.events(name)
    if not found:
        typer.echo(f"The API server has no events of {name}: it keeps them for an hour.", err=True)
        return
    typer.echo(views.events(found, datetime.now(UTC)))


def suspend(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Have a TrainingRun save a checkpoint and free its pods, until `resume`."""
    with one_sentence():
        _set_suspend(connect(context, namespace), name, True)
    typer.echo(f"{name} is asked to suspend: it saves a checkpoint, and then frees its pods")


def resume(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Have a suspended TrainingRun continue from its last checkpoint."""
    with one_sentence():
        _set_suspend(connect(context, namespace), name, False)
    typer.echo(f"{name} is asked to continue from its last checkpoint")


def _set_suspend(kube: "Kube", name: str, wanted: bool) -> None:
    run = kube.run(name)
    phase = (run.get("status") or {}).get("phase")
    if phase in ENDED:
        raise CliError(
            f"TrainingRun {name} in namespace {kube.namespace} has ended ({phase}); `retry` begins "
            "a run from its checkpoint"
        )
    if run["spec"].get("suspend", False) is wanted:
        said = "asked to suspend already" if wanted else _why_not_resumed(run)
        raise CliError(f"TrainingRun {name} in namespace {kube.namespace} is {said}")
    kube.set_suspend(name, wanted)


def _why_not_resumed(run: dict[str, Any]) -> str:
    for condition in (run.get("status") or {}).get("conditions") or []:
        if condition["type"] == "Suspended" and condition["reason"] == "BudgetSpent":
            return "suspended by its budget; raise spec.budget.amount to continue"
    return "not suspended"


def delete(name: Name, namespace: Namespace = None, context: Context = None) -> None:
    """Delete a TrainingRun and its pods; its folder in the bucket is kept."""
    with one_sentence():
        kube = connect(context, namespace)
        folder = names.folder_of(kube.run(name))
        kube.delete(name)
    typer.echo(f"{name} deleted from namespace {kube.namespace}; {folder} is kept")


def retry(
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
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Create a run with the spec of another one, which begins from that one's checkpoint."""
    with one_sentence():
        kube = connect(context, namespace)
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
    from .kube import NotFoundError

    try:
        phase = (kube.run(name).get("status") or {}).get("phase")
    except NotFoundError:
        return
    if phase in ENDED:
        raise CliError(
            f"TrainingRun {name} in namespace {kube.namespace} has ended ({phase}); delete it, or "
            "choose another name"
        )


def _follow(kube: "Kube", name: str) -> None:
    """Print a line for each change until the run ends.

    Raises:
        CliError: it failed, or was deleted.
    """
    shown: str | None = None
    warned: set[str] = set()
    for run in _answers(kube, name):
        if (line := views.progress_line(run)) != shown:
            shown = line
            typer.echo(f"{datetime.now():%H:%M:%S} {name}: {line}")
        for warning in views.warnings(run):
            if is_new(warning, warned):
                typer.echo(f"{datetime.now():%H:%M:%S} {name}: {plain(warning)}")
        match (run.get("status") or {}).get("phase"):
            case "Succeeded":
                return
            case "Failed":
                raise CliError(f"{name} failed: {plain(views.failure(run))}")
            case "Deleting":
                raise CliError(
                    f"{name} is deleted; finalizers hold the object: {views.finalizers(run)}"
                )


def _answers(kube: "Kube", name: str) -> Iterator[dict[str, Any]]:
    """The run as it is now, again each second; an API server that is away is asked again.

    Raises:
        CliError: It is not there, was deleted, or the API server does not answer any more.
    """
    from .kube import NotFoundError, UnreachableError

    answered_at = None
    while True:
        try:
            run = kube.run(name)
        except NotFoundError:
            if answered_at is None:
                raise
            raise CliError(f"{name} was deleted") from None
        except UnreachableError:
            if answered_at is None or time.monotonic() - answered_at > _UNREACHABLE_TIMEOUT_S:
                raise
        else:
            answered_at = time.monotonic()
            yield run
        time.sleep(_POLL_INTERVAL_S)
