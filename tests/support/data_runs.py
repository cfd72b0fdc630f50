"""Runs whose training function notes which samples each rank has trained on."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.progress import RecordKind

from .local_runs import Run


class DataRun(Run):
    """A run of a training function that writes `step epoch samples` into files `rank-…`.

    Args:
        ray: where it trains.
        folder: of its own; the training function gets it in its config.
        function: `module:name`.
        config: what else the training function gets.
        epochs: how many epochs it trains.
    """

    def __init__(
        self, ray: LocalRay, folder: Path, function: str, config: dict[str, Any], epochs: int
    ) -> None:
        self.folder, self._epochs = folder, epochs
        folder.mkdir()
        super().__init__(ray, folder, function, {"folder": str(folder), **config})

    def steps(self) -> list[tuple[int, int, list[int]]]:
        """Step, epoch and samples of each step that a rank has done, rank by rank."""
        found = []
        for file in sorted(self.folder.glob("rank-*")):
            for line in file.read_text().splitlines():
                step, epoch, indices = line.split(maxsplit=2)
                found.append((int(step), int(epoch), json.loads(indices)))
        return found

    def seen(self) -> list[Counter[int]]:
        """How often each sample was trained on, by epoch."""
        counts: list[Counter[int]] = [Counter() for _ in range(self._epochs)]
        for _, epoch, indices in self.steps():
            counts[epoch].update(indices)
        return counts

    def resumed_from(self) -> list[int | None]:
        """The steps from which later worker groups have gone on."""
        records = self.progress().records
        return [r.step for r in records if r.kind is RecordKind.RESTORED][1:]

    def resumed(self) -> list[str]:
        """From where later worker groups have gone on, in sentences."""
        records = self.progress().records
        return [r.message for r in records if r.kind is RecordKind.RESTORED][1:]

    def configure(self, workers: int | None = None, **config: Any) -> None:
        """What the next driver gets."""
        update: dict[str, Any] = {"config": {**self.contract.config, **config}}
        if workers is not None:
            update["workers"] = workers
        self.contract = self.contract.model_copy(update=update)
