"""The page of a run, from its folder and, where it is known, its status."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..api.errors import RunError
from ..rendering import names
from ..rendering.defaults import names_storage
from .places import Place, folder_of, name_of

if TYPE_CHECKING:
    from trainingrun_runtime.report_page.contents import Contents
    from trainingrun_runtime.report_page.folder import RunFolder


def of(place: Place) -> tuple[str, str]:
    """Name of a run, and its page as HTML.

    A run whose status is known has a page also while its bucket does not answer.

    Raises:
        RunError: There is no such folder, or the bucket cannot be read.
    """
    if place.run is not None:
        return str(place.name), of_run(place.run, lambda: place)
    from trainingrun_runtime.report_page import contents, page

    found = read(place)
    name = place.name or name_of(found.root)
    return name, page.html(contents.of(name, found, None, time.time(), "From the run's folder."))


def of_run(run: Mapping[str, Any], place: Callable[[], Place]) -> str:
    """The page of a run whose status is known, as HTML.

    Args:
        run: The TrainingRun as the API server gives it.
        place: Its folder. Raises RunError: that is not known, or one of the pods.
    """
    from trainingrun_runtime.report_page import page

    return page.html(of_status(run, lambda: read(place())))


def of_status(run: Mapping[str, Any], folder: Callable[[], "RunFolder"]) -> "Contents":
    """What the page says of a run whose status is known, also while its bucket does not answer.

    Args:
        run: The TrainingRun as the API server gives it.
        folder: Reads what the run has left. Raises RunError.
    """
    from trainingrun_runtime.report_page import contents
    from trainingrun_runtime.report_page.folder import RunFolder

    source = "From the run's folder and its status."
    try:
        found = folder()
    except RunError as error:
        note = f"Nothing of the bucket is on this page: {error}."
        uri = names.folder_of(run) if names_storage(run) else ""
        found, source = RunFolder(uri, notes=[note]), "From the run's status."
    return contents.of(run["metadata"]["name"], found, run, time.time(), source)


def read(place: Place) -> "RunFolder":
    """What a run has left in its folder.

    Raises:
        RunError: There is no such folder, or the bucket cannot be read.
    """
    with folder_of(place) as bucket:
        from trainingrun_runtime.report_page import folder
        from trainingrun_runtime.results import NoTrial, open_trial
        from trainingrun_runtime.sweep import record

        try:
            trial = open_trial(bucket, place.trial)
        except NoTrial:
            sweep = record.read(bucket)
            if place.trial is not None or sweep is None or sweep.best is not None:
                raise
            # Who looks at it cannot always name a trial: what the run itself has left is shown.
            found = folder.read(bucket)
            note = (
                f"No trial has reported {sweep.metric!r} yet, so that metrics, checkpoints and "
                "ranks of none are shown; `trainingrun report --html --trial` shows those of one."
            )
            return replace(found, sweep=sweep.table(), notes=[*found.notes, note])
        if trial is None:
            return folder.read(bucket)
        found = folder.read(trial.bucket)
        note = f"Metrics, checkpoints and ranks are those of trial {trial.number}."
        return replace(found, sweep=trial.sweep, notes=[*found.notes, note])
