"""What each page shows, read with the rights of the kubeconfig's user and no others."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple

from trainingrun_runtime.report_page import page
from trainingrun_runtime.report_page.folder import RunFolder

from ...api.errors import RunError
from ...client import logs, places, run_page
from ...client.errors import ForbiddenError
from ...client.log_lines import Selection
from ...client.sources import Cluster
from ..log_command import folded
from . import fleet
from .fleet import Row, Wanted
from .shared import Reading, Shared, unreadable

_FRESH_S = 5.0
_FOLDER_FRESH_S = 30.0
"""Of a run's folder, which takes some requests to the bucket."""
_LINES = 100
"""Lines of each rank."""
_MOST_LINES = 5000
"""On a page."""


class Page(NamedTuple):
    """An answer."""

    status: HTTPStatus
    html: str


class Pages:
    """The pages of the runs of a cluster."""

    def __init__(self, cluster: Cluster, everywhere: bool, endpoint: str | None = None) -> None:
        """Read nothing yet.

        Args:
            cluster: Where the runs are.
            everywhere: Whether the runs of all namespaces are shown.
            endpoint: URL of the buckets' service as this machine reaches it; None: each run's.
        """
        self._cluster, self._everywhere, self._endpoint = cluster, everywhere, endpoint
        self._shared = Shared()

    def fleet(self, query: Mapping[str, str]) -> Page:
        """All runs, as far as the query does not exclude them."""
        wanted, notes = Wanted.of(query), []
        everywhere = self._everywhere
        reading = self._rows(None) if everywhere else None
        if reading is not None and isinstance(reading.problem, ForbiddenError):
            everywhere = False
            notes = [
                f"{reading.problem}. So the runs of one namespace are shown; name another one to "
                "see those."
            ]
        if reading is None or not everywhere:
            wanted = replace(wanted, namespace=wanted.namespace or self._cluster.kube.namespace)
            reading = self._rows(wanted.namespace)
        return _page(
            "fleet.html.j2",
            reading,
            title="TrainingRuns",
            wanted=wanted,
            everywhere=everywhere,
            notes=notes,
            shown=fleet.shown(reading.value or [], wanted),
        )

    def _rows(self, namespace: str | None) -> Reading[list[Row]]:
        kube = self._cluster.kube if namespace is None else self._cluster.kube.within(namespace)

        def read() -> list[Row]:
            return fleet.rows_of(kube.each_run(namespace is None), datetime.now(UTC))

        return self._shared.get(("runs", namespace), read, _FRESH_S)

    def run(self, namespace: str, name: str) -> Page:
        """The parts of a run's report, as they are now."""

        def read() -> dict[str, Any]:
            return self._cluster.within(namespace).run(name)

        reading = self._shared.get(("run", namespace, name), read, _FRESH_S)
        fields: dict[str, Any] = {"title": name, "namespace": namespace, "name": name, "page": None}
        if (run := reading.value) is None:
            return _page("run.html.j2", reading, **fields)
        try:
            parts = run_page.of_status(run, lambda: self._folder(run))
            fields |= {"page": parts, "title": f"{name}: {parts.state}"}
            return _page("run.html.j2", reading, **fields)
        except Exception as error:  # the status is not as this version knows it
            reading = Reading(problem=unreadable(error), every_s=reading.every_s)
            return _page("run.html.j2", reading, **{**fields, "page": None})

    def _folder(self, run: Mapping[str, Any]) -> RunFolder:
        """What a run has left, so far.

        Raises:
            RunError: It is not known.
        """
        place = places.in_cluster(run, [], self._endpoint, None)
        key = ("folder", run["metadata"]["uid"])
        reading = self._shared.get(key, lambda: run_page.read(place), _FOLDER_FRESH_S, 5.0)
        if reading.value is None:
            raise reading.problem or RunError(f"{place.uri} was not read")
        notes = [f"{reading.problem}."] if reading.problem else []
        return replace(reading.value, notes=[*reading.value.notes, *notes])

    def logs(self, namespace: str, name: str, query: Mapping[str, str]) -> Page:
        """What the ranks and the driver of a run have printed last."""
        rank, attempt, lines = (
            query.get(each, "").strip() for each in ("rank", "attempt", "lines")
        )
        fields = {"rank": rank, "attempt": attempt, "lines": lines or str(_LINES)}
        try:
            wanted = Selection(
                None if rank in ("", "driver") else _number("rank", rank, 0, "driver, "),
                rank == "driver",
                attempt=_number("attempt", attempt, 1) if attempt else None,
                tail=_number("lines", fields["lines"], 1),
            )
        except RunError as error:
            reading = Reading[tuple[list[str], list[str]]](problem=error, every_s=3600)
        else:
            key = ("logs", namespace, name, *fields.values())
            reading = self._shared.get(key, lambda: self._lines(namespace, name, wanted), _FRESH_S)
        found, notes = reading.value or ([], [])
        return _page(
            "logs.html.j2",
            reading,
            title=f"{name}: logs",
            namespace=namespace,
            name=name,
            fields=fields,
            lines=found,
            notes=notes,
        )

    def _lines(self, namespace: str, name: str, wanted: Selection) -> tuple[list[str], list[str]]:
        """The lines, and sentences about those that are not there."""
        notes: list[str] = []
        lines: list[str] = []
        cluster = self._cluster.within(namespace)
        for batch in logs.of_run(cluster, name, wanted, False, self._endpoint, notes.append):
            lines += [*batch.heading.splitlines(), *folded(batch.lines)]
        if left_out := len(lines[:-_MOST_LINES]):
            notes.append(f"{left_out:,} earlier lines are left out; name a rank, or fewer lines.")
        return lines[-_MOST_LINES:], notes


def problem(sentence: str, status: HTTPStatus = HTTPStatus.NOT_FOUND) -> Page:
    """A page that says why there is none."""
    found = _page("frame.html.j2", Reading[None](problem=RunError(sentence)), title="TrainingRuns")
    return found._replace(status=status)


def _page(template: str, reading: Reading[Any], **fields: Any) -> Page:
    found = page.environment(__package__ or "", page.__name__.rpartition(".")[0])
    return Page(HTTPStatus.OK, found.get_template(template).render(reading=reading, **fields))


def _number(name: str, text: str, least: int, instead: str = "") -> int:
    if not text.isdecimal() or len(text) > 7 or int(text) < least:
        raise RunError(f"{name} is {text}; write {instead}a number from {least}, or nothing")
    return int(text)
