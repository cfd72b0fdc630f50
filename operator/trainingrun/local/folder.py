"""The folder that takes the bucket's place: runs, their logs, and what ranks and trials report,
for `ranks` and `sweep` with --local.
"""

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainingrun_protocol.contract import ContractRestore
from trainingrun_protocol.progress import Progress, RunState, SweepTable

from ..api.storage_spec import Storage
from ..api.v1alpha1 import TrainingRun
from ..rendering import names
from .machine import LocalError

_LATEST = "latest.json"
_RANKS = "ranks.json"
_SWEEP = "sweep.json"
"""The ranks, and the trials, as they last reported."""
_UID = re.compile(r"[0-9a-f]{8}")
"""The part of a UID that the name of a run's folder ends with."""


def root_of(name: str, folder: Path | None) -> Path:
    """The folder of the local runs of a name: the one that the user gives, else the default."""
    return folder or Path("trainingrun-local") / name


@dataclass(frozen=True, slots=True)
class Folder:
    """Where one run keeps everything on this machine."""

    run: TrainingRun
    """The run as it is trained here: with a UID, and this folder as its bucket."""
    root: Path
    """Holds the folders of all runs of this name, `latest.json` and `logs/`."""
    first_attempt: int
    """Number of the first attempt to make now; more than 1 where a run is resumed."""

    @classmethod
    def prepare(cls, run: TrainingRun, root: Path | None, resume: bool) -> "Folder":
        """Make the folder for a new run, or find that of the latest one.

        Args:
            run: The run as it was written.
            root: The folder; default: `trainingrun-local/<name>` below the working directory.
            resume: Resume the latest run there instead of beginning a new one.

        Raises:
            LocalError: The folder cannot be written, or there is nothing to resume.
        """
        root = root_of(run.metadata.name, root).absolute()
        uid, attempt = str(uuid.uuid4()), 1
        if resume:
            try:
                latest = json.loads((root / _LATEST).read_text())
                uid, attempt = str(latest["uid"]), int(latest["attempt"]) + 1
            except (OSError, ValueError, KeyError):
                raise LocalError(
                    f"{root} holds no run to resume; leave --resume out to begin a new one"
                ) from None
        metadata = run.metadata.model_copy(update={"uid": uid})
        spec = run.spec.model_copy(update={"storage": Storage(uri=root.as_uri())})
        folder = cls(run.model_copy(update={"metadata": metadata, "spec": spec}), root, attempt)
        try:
            folder.logs.mkdir(parents=True, exist_ok=True)
            folder.remember(attempt)
        except OSError as error:
            raise LocalError(f"cannot write to {root}: {error.strerror}") from None
        return folder

    @property
    def logs(self) -> Path:
        """Output of the driver and of Ray's nodes."""
        return self.root / "logs" / self.run.metadata.uid[:8]

    @property
    def uri(self) -> str:
        """The run's own folder, as it is in the contract."""
        return names.run_folder(self.run)

    def remember(self, attempt: int) -> None:
        """Store the number of an attempt, for a later `--resume`."""
        text = json.dumps({"uid": self.run.metadata.uid, "attempt": attempt})
        (self.root / _LATEST).write_text(text)

    def restore_from(self, wanted: Storage) -> ContractRestore | None:
        """The other run that this one begins from, if it does.

        A run that is named is the latest one of that name in this folder, or in the folder beside
        this one that has its name.

        Args:
            wanted: `spec.storage` as it was written.

        Raises:
            LocalError: There is no run of that name.
        """
        source = wanted.restore_from
        if source is None:
            return None
        uri = source.uri
        if uri is None:
            found = self._latest(source.run or "")
            if found is None:
                if any((self.root / self._name / "manifests").glob("*.json")):
                    return None  # a resumed run needs only its own checkpoints
                raise LocalError(
                    f"storage.restoreFrom.run is {source.run}, and neither {self.root} nor "
                    f"{self.root.parent / (source.run or '')} holds a run of that name; give its "
                    "folder in restoreFrom.uri, such as file:///runs/digits-1a2b3c4d"
                )
            uri = found.as_uri()
        return ContractRestore(
            uri=uri.rstrip("/"), endpoint=wanted.endpoint, region=wanted.region, step=source.step
        )

    @property
    def _name(self) -> str:
        """Of the run's own folder below `root`."""
        return self.uri.rpartition("/")[2]

    def _latest(self, name: str) -> Path | None:
        """The folder of the latest run of this name."""
        places = (self.root, self.root.parent / name)
        found = [
            entry
            for place in places
            for entry in place.glob(f"{name}-*")
            if _UID.fullmatch(entry.name.removeprefix(f"{name}-")) and entry.is_dir()
        ]
        return max(found, key=lambda entry: entry.stat().st_mtime, default=None)

    def write_script(self, config_maps: Mapping[str, Mapping[str, str]]) -> Path | None:
        """Write the run's script where Python finds it, unless it is in the image or in the code.

        Returns:
            Its path, relative to the folder of the code if it is there; None if the run trains a
            function.

        Args:
            config_maps: Data of the ConfigMaps in the run's own file, by name.

        Raises:
            LocalError: The ConfigMap or the script in it is not there.
        """
        source = self.run.spec.training.script
        if source is None:
            return None
        if source.config_map is None:
            path = Path(source.path or "")
            if path.is_absolute() and not path.is_file():
                raise LocalError(
                    f"training.script.path {path} is not a file on this machine; a local run reads "
                    "it here, not in the image"
                )
            return path
        data = config_maps.get(source.config_map)
        if data is None:
            raise LocalError(
                f"ConfigMap {source.config_map} is not in the file; add it as a further document "
                "(---), for there is no cluster to read it from"
            )
        if source.file not in data:
            raise LocalError(
                f"ConfigMap {source.config_map} has no key {source.file}, only "
                f"{', '.join(sorted(data)) or 'none at all'}"
            )
        folder = self.root / "scripts" / self.run.metadata.uid[:8]
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in data.items():
            (folder / name).write_text(text)
        return folder / source.file


def remember_ranks(root: Path, progress: Progress) -> None:
    """Keep what the ranks report now; a driver that starts has none yet."""
    if progress.ranks:
        ranks = [row.to_dict() for row in progress.ranks]
        _keep(root / _RANKS, {"ranks": ranks, "warnings": progress.warnings})
    elif progress.state is RunState.STARTING:
        (root / _RANKS).unlink(missing_ok=True)


def latest_ranks(root: Path) -> dict[str, Any]:
    """The ranks and warnings of the latest run in a folder, as status.progress has them.

    Raises:
        LocalError: there are none.
    """
    try:
        found: dict[str, Any] = json.loads((root / _RANKS).read_bytes())
    except (OSError, ValueError):
        raise LocalError(
            f"{root} holds nothing that ranks have reported; each rank of `trainingrun run FILE "
            "--local` does 10 s after its start; or name the run's folder with --folder"
        ) from None
    return found


def remember_sweep(root: Path, progress: Progress) -> None:
    """Keep the trials for `trainingrun sweep NAME --local`."""
    table = progress.sweep or (progress.result.sweep if progress.result else None)
    if table is not None:
        _keep(root / _SWEEP, table.to_dict())


def latest_sweep(root: Path) -> SweepTable:
    """The trials of the latest run in a folder.

    Raises:
        LocalError: there are none.
    """
    try:
        return SweepTable.model_validate_json((root / _SWEEP).read_bytes())
    except (OSError, ValidationError):
        raise LocalError(
            f"{root} holds no trials; run a file with spec.sweep by `trainingrun run FILE "
            "--local`, or name its folder with --folder"
        ) from None


def _keep(file: Path, found: dict[str, Any]) -> None:
    part = file.with_name(f".{file.name}")
    part.write_text(json.dumps(found))
    part.replace(file)
