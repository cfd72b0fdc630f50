"""What `fit()` returns to a script: Ray's `Result`, with what the whole run has.

Ray knows what this driver has seen, and of the metrics those that came with a checkpoint.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ray import cloudpickle
from ray.train import Result

from ..checkpoints import checkpoint_files
from ..ray_internals.filesystem import RetryingCheckpoint
from ..store.bucket import Bucket
from ..store.manifest import Manifest
from ..store.metric_values import SPELLED, printable_metrics


class RunResult(Result):
    """Ray's `Result`, whose table is read when it is first asked for: it may be large."""

    read_table: Callable[[], Any]
    """Returns the run's table of metrics as a DataFrame."""
    _table: Any = None

    @property
    def metrics_dataframe(self) -> Any:
        """A row for each step with a report; None: nothing was reported."""
        if self._table is None:
            self._table = self.read_table()
        return self._table if len(self._table) else None

    @metrics_dataframe.setter
    def metrics_dataframe(self, table: Any) -> None:
        self._table = None  # Ray's own has the checkpoints alone


def completed(
    result: Result,
    bucket: Bucket,
    kept: Sequence[Manifest],
    metrics: dict[str, Any] | None,
    read_table: Callable[[], Any],
) -> RunResult:
    """Ray's result, with the run's metrics and the checkpoints that it keeps.

    Args:
        result: Ray's.
        bucket: the run's folder.
        kept: the checkpoints that the run keeps, in the order of `best_checkpoints`.
        metrics: the last ones, as `last_metrics` returns them; none: nothing was reported.
        read_table: of `RunResult`.
    """
    known = {bucket.key_of(each.path): (each, own) for each, own in result.best_checkpoints or ()}
    found = RunResult(**{field.name: getattr(result, field.name) for field in fields(Result)})
    found.read_table = read_table
    found.metrics = metrics
    found.best_checkpoints = [known.get(each.path) or _of(bucket, each) for each in kept]
    newest = max(kept, key=lambda each: each.sort_key, default=None)
    if found.checkpoint is None and newest is not None:
        found.checkpoint = _of(bucket, newest)[0]
    return found


def answer_from_path(found: RunResult, bucket: Bucket) -> None:
    """Have `Result.from_path` return this one for the run's folder and for `result.path`.

    Ray's own reads a file which the run does not write: it would name checkpoints that are deleted.
    """
    own = {found.path.strip("/"), bucket.pyarrow()[1].strip("/")}
    theirs = Result.from_path.__func__

    def from_path(cls: Any, path: Any, storage_filesystem: Any = None) -> Any:
        if str(path).rpartition("://")[2].strip("/") in own:
            return found
        return theirs(cls, path, storage_filesystem)

    Result.from_path = classmethod(from_path)


def last_metrics(reported: Mapping[str, Any], pickled: bytes) -> dict[str, Any] | None:
    """The last metrics of the run, as they were reported where they are known so.

    Args:
        reported: as the run's result has them.
        pickled: the last report of this driver; empty: there is none.
    """
    if not reported and not pickled:
        return None
    original: Mapping[str, Any] = cloudpickle.loads(pickled) if pickled else {}
    printed = printable_metrics(original)
    others = {name: value for name, value in reported.items() if printed.get(name) != value}
    return {**original, **_numbers(others)}


def _of(bucket: Bucket, committed: Manifest) -> tuple[RetryingCheckpoint, dict[str, Any]]:
    path, filesystem = checkpoint_files.offered(bucket, committed)
    return RetryingCheckpoint(path=path, filesystem=filesystem), _numbers(committed.metrics)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: SPELLED.get(value, value) if isinstance(value, str) else value
        for name, value in metrics.items()
    }
