"""The page of a run, from its folder and, where it is known, its status."""

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ..api.errors import RunError
from .places import Place, folder_of, name_of

if TYPE_CHECKING:
    from trainingrun_runtime.report_page.folder import RunFolder


def of(place: Place) -> tuple[str, str]:
    """Name of a run, and its page as HTML.

    A run whose status is known has a page also while its bucket does not answer.

    Raises:
        RunError: There is no such folder, or the bucket cannot be read.
    """
    from trainingrun_runtime.report_page import contents, page
    from trainingrun_runtime.report_page.folder import RunFolder

    source = "From the run's folder."
    if place.run is not None:
        source = "From the run's folder and its status."
    try:
        found = _read(place)
    except RunError as error:
        if place.run is None:
            raise
        note = f"Nothing of the bucket is on this page: {error}."
        found, source = RunFolder(place.uri, notes=[note]), "From the run's status."
    name = place.name or name_of(found.root)
    return name, page.html(contents.of(name, found, place.run, time.time(), source))


def _read(place: Place) -> "RunFolder":
    with folder_of(place) as bucket:
        from trainingrun_runtime.report_page import folder
        from trainingrun_runtime.results import open_trial

        trial = open_trial(bucket, place.trial)
        if trial is None:
            return folder.read(bucket)
        found = folder.read(trial.bucket)
        note = f"Metrics, checkpoints and ranks are those of trial {trial.number}."
        return replace(found, sweep=trial.sweep, notes=[*found.notes, note])
