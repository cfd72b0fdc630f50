"""One run: where it stands, what it prints and makes, and what can be done with it."""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import ValidationError

from trainingrun_protocol.progress import RankRow

from ..api.errors import RunError
from ..api.status import Phase, RunProgress, RunStatus
from ..local import records
from ..local.machine import in_local_words
from ..local.run_line import phase, progress_line, reasons
from . import following, logs, places, run_page
from .errors import RunTimeoutError
from .local_process import LocalProcess
from .log_lines import Printed, Selection, pattern
from .notebook import Page, summary
from .places import LOG
from .retried_run import merged
from .sources import ENDED, Source, ThisMachine


@dataclass(frozen=True)
class Event:
    """An Event of a run; of a local one what its drivers have recorded."""

    time: datetime
    """When it was last seen."""
    type: str
    """Normal or Warning."""
    reason: str
    message: str
    count: int


class Checkpoint(NamedTuple):
    """A committed checkpoint."""

    step: int
    """Steps done when it was made."""
    uri: str
    time: datetime
    """Of the commit."""
    metrics: dict[str, Any]
    """As reported with it or later."""
    workers: int
    """Workers that made it."""
    bytes: int
    """Size of its files."""


def _status(run: Mapping[str, Any]) -> RunStatus:
    try:
        return RunStatus.model_validate(run.get("status") or {})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _of_another_version(where, first["msg"]) from None


def _of_another_version(where: str, why: str) -> RunError:
    return RunError(
        f"status.{where} is not as this version knows it ({why}); install the trainingrun of the "
        "operator's version, or read run.object"
    )


class Run:
    """A run of a cluster or of this machine. Each call asks where it stands now.

    Raises:
        RunError: By each call: the run is gone, or the cluster or the bucket does not answer.
    """

    def __init__(
        self,
        source: Source,
        name: str,
        endpoint: str | None = None,
        process: LocalProcess | None = None,
    ) -> None:
        """A run that there is.

        Args:
            source: Where it is.
            name: Its name.
            endpoint: URL of the bucket's service as this machine reaches it; None: the run's.
            process: That trains it, where this process has begun it.
        """
        self._source, self.name = source, name
        self._endpoint, self._process = endpoint, process

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self._source.where(False)!r})"

    def _repr_html_(self) -> str:
        try:
            run = self.object
        except RunError as error:
            return summary({"metadata": {"name": self.name}}, None, str(error))
        place = None
        with contextlib.suppress(RunError):  # a folder of the pods has no curve here
            place = self._place(run)
        return summary(run, place)

    @property
    def object(self) -> dict[str, Any]:
        """The TrainingRun as the API server gives it."""
        return self._source.run(self.name)

    @property
    def status(self) -> RunStatus:
        """Its status; each field is described in docs/api.md."""
        return _status(self.object)

    @property
    def phase(self) -> Phase:
        """The state in one word."""
        found = phase(self.object)
        try:
            return Phase(found)
        except ValueError:
            raise _of_another_version("phase", f"{found} is none of {', '.join(Phase)}") from None

    def progress(self) -> RunProgress:
        """How far the training is."""
        return self.status.progress or RunProgress()

    def ranks(self) -> list[RankRow]:
        """What each rank has measured last, while they train."""
        return self.progress().ranks or []

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Wait until the run has succeeded; the status that it ends with.

        In a cluster a run that is suspended is waited for until somebody resumes it.

        Args:
            timeout: Seconds, for which the API server may be away, too; None: as long as it takes,
                and the API server may be away for a minute at a time.

        Raises:
            RunFailedError: It has failed, in a sentence that says why.
            RunTimeoutError: It has not ended by then, as far as is known; it goes on.
            RunError: It was deleted or stopped, or cannot be asked about any more, and may go on.
        """
        until = time.monotonic() + timeout if timeout is not None else float("inf")
        followed, last = self._source.followed(self.name), None
        away_s = None if timeout is None else float("inf")
        for found in following.looks(followed, away_s, known=True):
            last = found or last
            if found is not None and phase(found) in followed.ends:
                break
            if time.monotonic() > until:
                stands = progress_line(last) if last else "nothing is known of it"
                goes_on = "and goes on" if found else "as far as is known without the API server"
                raise RunTimeoutError(
                    f"{self.name} has not ended within {timeout:g} s, {goes_on}: {stands}"
                )
            time.sleep(following.POLL_INTERVAL_S)
        following.ended(self.name, last, followed.ends)
        return _status(last or {})

    def logs(
        self,
        rank: int | None = None,
        follow: bool = False,
        *,
        driver: bool = False,
        attempt: int | None = None,
        trial: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        tail: int = 1000,
    ) -> Iterator[Printed]:
        """The lines that ranks and the driver have printed, by their time; `str` has the rank.

        Args:
            rank: Of this rank alone.
            follow: Go on with what is printed until the run ends.
            driver: Of the driver alone.
            attempt: Number of the attempt; None: the last one.
            trial: Number of the trial, of a sweep.
            since: Not older than so many seconds.
            grep: Regular expression that a line contains.
            tail: Lines from the end of each rank and of the driver; 0: none of those so far.
        """
        wanted = Selection(rank, driver, trial, attempt, since, pattern(grep), tail)
        found = logs.of_run(self._source, self.name, wanted, follow, self._endpoint, LOG.warning)
        for batch in found:
            yield from batch.lines

    def events(self) -> list[Event]:
        """The Events that the API server still has, the last one last."""
        return [
            Event(
                datetime.fromisoformat(places.last_seen(one)),
                one.get("type") or "",
                one.get("reason") or "",
                one.get("message") or "",
                one.get("count") or 1,
            )
            for one in places.events(self._source, self.name)
        ]

    @property
    def metrics(self) -> Any:
        """What the training has reported, each step once: a DataFrame, without pandas a Table.

        Of a sweep that of the best trial.
        """
        with places.opened(self._place(), LOG.warning) as bucket:
            from trainingrun_runtime.store import metrics_table

            table = metrics_table.read(bucket)
        try:
            import pandas  # noqa: F401 - pyarrow makes its DataFrame
        except ModuleNotFoundError:
            return table
        return table.to_pandas()

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints, the newest last; of a sweep those of the best trial."""
        with places.opened(self._place(), LOG.warning) as bucket:
            return [
                Checkpoint(
                    one.step,
                    f"{bucket.root}/{one.path}",
                    datetime.fromtimestamp(one.time, UTC),
                    dict(one.metrics),
                    one.world_size,
                    sum(file.size for file in one.files.values()),
                )
                for one in places.committed(bucket, LOG.warning)
            ]

    def why(self) -> list[str]:
        """Why the run does not move, what slows it, or why it has ended; empty: nothing is known.

        A run that nobody has accepted, or that waits without a reason, is asked about as
        `trainingrun doctor` does.
        """
        run = self.object
        found = reasons(run)
        if isinstance(self._source, ThisMachine):
            return list(dict.fromkeys([*found, *in_local_words(" ".join(found))]))
        if not found and phase(run) not in (*ENDED, Phase.RUNNING):
            from . import checks  # with the operator's client, which takes long to load

            found += [
                f"{one.what}: {one.sentence}"
                for one in checks.of_cluster(self._source)
                if one.verdict is checks.Verdict.WRONG
            ]
        return list(dict.fromkeys(found))

    def suspend(self) -> None:
        """Have the run save a checkpoint and free its pods; on this machine wait for its end."""
        if isinstance(self._source, ThisMachine):
            records.stop(self._source.own_folder(self.name))
        else:
            self._source.set_suspend(self.name, True)

    def resume(self) -> None:
        """Have the run continue from its last checkpoint."""
        if isinstance(self._source, ThisMachine):
            self._own_process().resume()
        else:
            self._source.set_suspend(self.name, False)

    def _own_process(self) -> LocalProcess:
        if self._process is None:
            raise RunError(
                f"{self.name} was not begun by this process, so that it can only be continued by "
                "`trainingrun run FILE --local --resume`"
            )
        return self._process

    def retry(
        self,
        *,
        name: str | None = None,
        step: int | None = None,
        config: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> "Run":
        """Begin a run with the spec of this one, from its checkpoint.

        Args:
            name: Of the new run; None: `<name>-retry-1`, -2, …
            step: Of the checkpoint; None: the newest intact one.
            config: Changes of `training.config`; None as a value removes a key.
            spec: Changes of any field of the spec, as in YAML; None as a value removes one.
        """
        if isinstance(self._source, ThisMachine):
            raise RunError(
                "retry is for a run of a cluster; submit again with "
                f'storage={{"restoreFrom": {{"uri": {self.folder!r}}}}}'
            )
        changes = spec
        if config is not None:
            changes = merged(spec, {"training": {"config": config}}, keep_none=True)
        manifest = self._source.retried(self.name, name, step, (), changes, say=LOG.info)
        self._source.kube.create(manifest)
        return Run(self._source, manifest["metadata"]["name"], self._endpoint)

    def delete(self) -> None:
        """Delete the run and its pods; its folder in the bucket is kept, on this machine not."""
        self._source.delete(self.name)

    @property
    def folder(self) -> str:
        """URI of the run's folder in the bucket, or on this machine."""
        return places.folder_uri(self.object)

    def report(self) -> Page:
        """The page of what happened to the run; in a notebook it is shown."""
        if isinstance(self._source, ThisMachine):
            return Page(run_page.of(self._place())[1])
        run = self.object
        return Page(run_page.of_run(run, lambda: self._place(run)))

    def _place(self, run: Mapping[str, Any] | None = None) -> places.Place:
        if isinstance(self._source, ThisMachine):
            return places.on_this_machine(self._source, self.name, None)
        return places.in_cluster(run or self.object, [], self._endpoint, None)
