"""`metrics`, `stacks` and `checkpoints …`: what a run has in its folder, in a bucket or here."""

import functools
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..api.errors import RunError
from ..client.errors import ForbiddenError
from ..client.places import (
    Place,
    committed,
    in_cluster,
    name_of,
    needed,
    opened,
    place_of_run,
)
from ..client.sources import Cluster, Source
from ..local.terminal_text import counted, plain, plain_lines, terminal_width
from . import pod_commands, views
from .common import Endpoint, NameOrUri, Step, Trial
from .errors import CliError, print_error, say
from .sources import source_of, taking

if TYPE_CHECKING:
    from trainingrun_runtime.store.bucket import Bucket
    from trainingrun_runtime.store.manifest import Manifest

checkpoints = typer.Typer(
    help="List, verify, download and delete the checkpoints of a run.", no_args_is_help=True
)


_ROWS = 20
"""Of metrics that are shown without --csv."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(metrics)
    app.command()(stacks)
    app.add_typer(checkpoints, name="checkpoints")


def place_in(
    source: Source, name: NameOrUri, trial: Trial = None, endpoint: Endpoint = None
) -> Place:
    """The place that a command names.

    Raises:
        CliError: There is no such run, or its folder is one of the pods.
    """
    if "://" in name:
        return Place(name, endpoint, trial=trial)
    found = place_of_run(source, name, trial, endpoint)
    run = found.run
    if not isinstance(source, Cluster) or run is None or run["spec"].get("sweep"):
        return found
    request = functools.partial(pod_commands.request_stacks, source.kube, dict(run))
    return replace(found, request_stacks=request)


place_of = taking(source_of)(place_in)


@taking(place_of)
def metrics(
    place: Place,
    csv: Annotated[bool, typer.Option("--csv", help="Print rows as CSV.")] = False,
    tail: Annotated[
        int | None,
        typer.Option(min=1, help="Rows from the end.", show_default="20, with --csv all"),
    ] = None,
) -> None:
    """Print what the training has reported, each step once."""
    with opened(place, say) as bucket:
        from trainingrun_runtime.store import metrics_table

        table = metrics_table.read(bucket)
        shown = tail or (len(table) if csv else _ROWS)
        last = table.slice(max(len(table) - shown, 0))
        if csv:
            text = _csv(last)
            typer.echo(plain_lines(text) if sys.stdout.isatty() else text, nl=False)
        elif not len(table):
            say(f"No metrics in {bucket.root} yet.")
        else:
            rows = last.to_pylist()
            width = terminal_width()
            typer.echo(views.metrics_table(rows, table.column_names, width))
            if len(table) > shown:
                say(f"The last {shown} of {len(table)} rows; --csv prints all.")


def _csv(table: Any) -> str:
    import pyarrow as pa
    from pyarrow.csv import write_csv

    empty = [field.name for field in table.schema if pa.types.is_null(field.type)]
    for name in empty:  # a column of nothing has no form in CSV
        index = table.schema.get_field_index(name)
        table = table.set_column(index, name, table[name].cast(pa.string()))
    sink = pa.BufferOutputStream()
    write_csv(table, sink)
    return bytes(sink.getvalue()).decode()


@taking(place_of)
def stacks(
    place: Place,
    rank: Annotated[
        int | None, typer.Option(min=0, help="Of this rank.", show_default="all")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="When, as --list shows it.", show_default="the latest ones"),
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="Show which stacks were kept.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Have them kept now, and print them.")] = False,
) -> None:
    """Print where each rank stood when the training hung, or with --now where it stands."""
    with opened(place, say) as bucket:
        from trainingrun_runtime.store import kept_stacks

        found = kept_stacks.kept(bucket)
        if now:
            if place.request_stacks is None:
                raise CliError("--now is for a run of a cluster, and for no sweep; leave it out")
            before = found
            place.request_stacks()
            found = [one for one in kept_stacks.kept(bucket) if one not in before]
            if not found:
                raise CliError("no rank trains now, or the bucket did not take the stacks")
        if not found:
            raise CliError(f"{bucket.root} has no stacks: they are kept when the training hangs")
        if show:
            for one in found:
                typer.echo(f"{one.time}  attempt {one.attempt}  {counted(len(one.ranks), 'rank')}")
            return
        chosen = next((one for one in found[::-1] if at in (None, one.time)), None)
        if chosen is None:
            there = ", ".join(one.time for one in found)
            raise CliError(f"--at is {at}, and there are stacks of {there}")
        if rank is not None and rank not in chosen.ranks:
            there = ", ".join(map(str, chosen.ranks))
            raise CliError(f"--rank is {rank}, and at {chosen.time} there are ranks {there}")
        say(f"Stacks of {chosen.time}, attempt {chosen.attempt}:")
        for number, key in chosen.ranks.items():
            if rank in (None, number):
                text = (bucket.get(key) or b"").decode(errors="replace")
                typer.echo(f"--- rank {number}: {plain_lines(text).rstrip()}\n")


@checkpoints.command("list")
@taking(place_of)
def list_checkpoints(place: Place) -> None:
    """List the checkpoints, the newest last."""
    with opened(place, say) as bucket:
        from trainingrun_runtime.store import retention

        found = committed(bucket, print_error)
        if not found:
            say(f"No checkpoints in {bucket.root}.")
            return
        best = retention.best_known(found)
        now, width = datetime.now(UTC), terminal_width()
        typer.echo(views.checkpoints_table(found, best, now, bucket.root, width))


@checkpoints.command()
@taking(place_of)
def verify(place: Place, step: Step = None) -> None:
    """Read all files of the checkpoints and compare them with what was committed.

    Exit code 1 if one of them is damaged.
    """
    with opened(place, say) as bucket:
        from trainingrun_runtime.store import manifest, verification

        unreadable = [one for one in manifest.read_all(bucket) if isinstance(one[1], str)]
        damaged = bool(unreadable)
        found = committed(bucket, print_error)
        if not found and not unreadable:
            raise CliError(f"no checkpoints in {bucket.root}")
        for one in _of_step(found, step, bucket):
            reason = verification.verify(bucket, one)
            if reason is None:
                files = counted(len(one.files), "file")
                typer.echo(f"step {one.step}: intact ({files}, {views.size_of(one)})")
            else:
                damaged = True
                print_error(f"step {one.step}: damaged: {reason}")
    raise typer.Exit(1 if damaged else 0)


@checkpoints.command()
@taking(place_of)
def download(
    place: Place,
    step: Step = None,
    best: Annotated[bool, typer.Option("--best", help="The best one.")] = False,
    to: Annotated[
        Path | None, typer.Option(help="Folder to make.", show_default="RUN-step-STEP")
    ] = None,
) -> None:
    """Download a checkpoint, by default the newest intact one; each file is verified."""
    with opened(place, say) as bucket:
        from trainingrun_runtime.checkpoints import downloads
        from trainingrun_runtime.store.storage_errors import DamagedError

        for found in _wanted(bucket, step, best):
            target = to or Path(f"{name_of(bucket.root)}-step-{found.step}")
            try:
                downloads.download(bucket, found, target)
            except DamagedError as error:
                print_error(f"step {found.step}: {error}")
                continue
            except FileExistsError:
                raise CliError(
                    f"{target} is there already; name another folder with --to"
                ) from None
            except OSError as error:
                raise CliError(f"{target} cannot be written: {error.strerror}") from None
            typer.echo(f"step {found.step} downloaded to {target}, {views.size_of(found)}")
            return
        raise CliError(f"{bucket.root} has no such checkpoint that is intact")


def place_to_prune(
    source: Source, name: NameOrUri, trial: Trial = None, endpoint: Endpoint = None
) -> tuple[Place, Source | None]:
    """The place, and where the runs that need it have still to be looked up."""
    place = place_in(source, name, trial, endpoint)
    if "://" in name:
        return place, source
    if isinstance(source, Cluster) and place.run is not None:
        place = in_cluster(place.run, source.runs(everywhere=False), endpoint, trial)
    return place, None


def _needed_by_runs(source: Source, root: str) -> frozenset[tuple[str, int]]:
    """Checkpoints that other runs need of a folder; which runs are not known is said."""
    name, unknown = root.rpartition("/")[2].rpartition("-")[0], "Other runs are not known"
    if isinstance(source, Cluster):
        try:
            try:
                return frozenset(needed(root, name, source.runs(everywhere=True)))
            except ForbiddenError:
                found = frozenset(needed(root, name, source.runs(everywhere=False)))
                unknown = f"Only runs of {source.where(everywhere=False)} are known"
        except RunError as error:
            found, unknown = frozenset(), f"{unknown} ({error})"
    else:
        found = frozenset()
    say(f"{unknown}: a checkpoint from which another one begins may be among these.")
    return found


@checkpoints.command()
@taking(taking(source_of)(place_to_prune))
def prune(
    where: tuple[Place, Source | None],
    keep: Annotated[int, typer.Option(min=1, help="Newest checkpoints to keep.")] = 1,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete all checkpoints but the newest, the newest intact one and the best one.

    It names them and asks before it deletes.
    """
    place, source = where
    with opened(place, say) as bucket:
        from trainingrun_runtime.store import retention

        by_runs = place.needed if source is None else _needed_by_runs(source, bucket.root)
        steps = frozenset(step for uri, step in by_runs if uri == bucket.root)
        try:
            found = retention.plan_pruning(bucket, keep, steps)
        except retention.NothingIntact as error:
            raise CliError(str(error)) from None
        kept = ", ".join(str(one.step) for one in found.kept) or "none"
        if not found.dropped:
            typer.echo(f"Nothing to delete; checkpoints: {kept}.")
            return
        for one in found.dropped:
            typer.echo(f"step {one.step}, {views.size_of(one)}: {plain(one.path)}")
        what = f"{counted(len(found.dropped), 'checkpoint')} ({views.size_of(*found.dropped)})"
        if not yes and not typer.confirm(f"Delete {what} of {bucket.root}, and keep {kept}?"):
            raise CliError("nothing is deleted")
        retention.prune(bucket, found)
        typer.echo(f"{what} deleted; steps kept: {kept}")


def _of_step(found: "list[Manifest]", step: int | None, bucket: "Bucket") -> "list[Manifest]":
    if step is None:
        return found
    if wanted := [one for one in found if one.step == step]:
        return wanted
    there = ", ".join(str(one.step) for one in found) or "none"
    raise CliError(
        f"--step is {step}, and {bucket.root} has no checkpoint of it; choose one of: {there}"
    )


def _wanted(bucket: "Bucket", step: int | None, best: bool) -> "list[Manifest]":
    """Checkpoints to download: the first of them that is intact."""
    from trainingrun_runtime.store import retention

    there = committed(bucket, print_error)
    if best and step is not None:
        raise CliError("--best and --step name two checkpoints; leave one of them out")
    if best:
        found = retention.best_known(there)
        if found is None:
            raise CliError(
                "--best needs checkpoints.best in the run, and a checkpoint with that metric; "
                "choose one with --step"
            )
        return [found]
    return _of_step(there, step, bucket)[::-1]
