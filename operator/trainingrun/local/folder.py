"""The folder that takes the bucket's place: runs, their records, and their logs."""

import contextlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainingrun_protocol.contract import ContractRestore

from ..api.storage_spec import Storage
from ..api.v1alpha1 import TrainingRun
from ..rendering import names
from . import records
from .machine import LocalError
from .records import Record
from .user_module import refuse_absent

LATEST = "latest.json"
"""The run that was begun last, of any name."""
TELL_ENV = "TRAININGRUN_TELL_FOLDER"
"""Number of a pipe's end, to which a run that begins writes its own folder: of several runs that
begin in one folder, whoever has started this process else takes another one for its own."""


def root_of(name: str, folder: Path | None) -> Path:
    """The folder of the local runs of a name: the one that the user gives, else the default."""
    return folder or Path("trainingrun-local") / name


def all_roots(folder: Path | None) -> list[Path]:
    """The folders of local runs: the one that the user gives, else those below the default."""
    if folder is not None:
        return [folder]
    return sorted(path for path in Path("trainingrun-local").glob("*") if path.is_dir())


@dataclass(frozen=True, slots=True)
class Folder:
    """Where one run keeps everything on this machine."""

    run: TrainingRun
    """The run as it is trained here: with a UID, and this folder as its bucket."""
    root: Path
    """Holds the folders of all runs of this name, `latest.json` and `logs/`."""
    first_attempt: int
    """Number of the first attempt to make now; more than 1 where a run is resumed."""
    record: Record
    """What other commands show of the run."""

    @classmethod
    def prepare(cls, run: TrainingRun, root: Path | None, resume: bool) -> "Folder":
        """Make the folder for a new run, or find that of the latest one.

        Args:
            run: The run as it was written.
            root: The folder; default: `trainingrun-local/<name>` below the working directory.
            resume: Resume the latest run of this name there instead of beginning a new one; where
                `root` is the own folder of a run, that one.

        Raises:
            LocalError: The folder cannot be written, there is nothing to resume, or another process
                trains that run.
        """
        root = root_of(run.metadata.name, root).absolute()
        uid, attempt = str(uuid.uuid4()), 1
        if resume:
            root, uid, attempt = _to_resume(root, run.metadata.name)
        metadata = run.metadata.model_copy(update={"uid": uid})
        spec = run.spec.model_copy(update={"storage": Storage(uri=root.as_uri())})
        here = run.model_copy(update={"metadata": metadata, "spec": spec})
        own = root / f"{run.metadata.name}-{uid[:8]}"
        try:
            folder = cls(here, root, attempt, Record(own, here, attempt))
            folder.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not resume:
                _discard(own)
            raise LocalError(f"cannot write to {root}: {error.strerror}") from None
        return folder

    def begin(self) -> None:
        """Make it the latest run of all names here; once nothing more is refused.

        Who has started this process is told the run's own folder.

        Raises:
            LocalError: The folder cannot be written.
        """
        latest = {"uid": self.run.metadata.uid, "attempt": self.first_attempt}
        try:
            records.write(self.root / LATEST, json.dumps(latest))
        except OSError as error:
            raise LocalError(f"cannot write to {self.root}: {error.strerror}") from None
        told = os.environ.pop(TELL_ENV, None)
        if told is not None:
            with contextlib.suppress(OSError), os.fdopen(int(told), "wb") as pipe:  # it has ended
                pipe.write(os.fsencode(self.root / self._name))

    def discard(self) -> None:
        """Delete a new run that is refused: else it would be the one that `--resume` means."""
        _discard(self.root / self._name)

    @property
    def begins(self) -> str | None:
        """What a run that is resumed begins with, in a sentence; None: it is a new one."""
        if self.first_attempt == 1:
            return None
        found = any((self.root / self._name / "manifests").glob("*.json"))
        how = (
            "its newest intact checkpoint" if found else "its beginning, since it has no checkpoint"
        )
        return f"{self._name} is resumed from {how}"

    @property
    def logs(self) -> Path:
        """Output of the driver and of Ray's nodes."""
        return self.root / "logs" / self.run.metadata.uid[:8]

    @property
    def uri(self) -> str:
        """The run's own folder, as it is in the contract."""
        return names.run_folder(self.run)

    def restore_from(self, wanted: Storage) -> ContractRestore | None:
        """The other run that this one begins from, if it does.

        A run that is named is the latest one of that name in this folder, or in the folder beside
        this one that has its name.

        Args:
            wanted: `spec.storage` as it was written.

        Raises:
            LocalError: There is no run of that name, or no such folder on this machine.
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
        elif not any((self.root / self._name / "manifests").glob("*.json")):
            refuse_absent(uri, "storage.restoreFrom.uri")
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
            if records.UID.fullmatch(entry.name.removeprefix(f"{name}-"))
            and entry.is_dir()
            and entry != self.root / self._name
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
        training = self.run.spec.training
        source = training.any_script
        field = "training.torchrun.script" if training.torchrun else "training.script"
        if source is None:
            return None
        if source.config_map is None:
            path = Path(source.path or "")
            if path.is_absolute() and not path.is_file():
                raise LocalError(
                    f"{field}.path {path} is not a file on this machine; a local run reads "
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
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in data.items():
                (folder / name).write_text(text, encoding="utf-8")
        except OSError as error:
            raise LocalError(f"cannot write to {folder}: {error.strerror}") from None
        return folder / source.file


def _discard(own: Path) -> None:
    with contextlib.suppress(LocalError):  # why the run is refused is what is said
        records.remove(own)


def _to_resume(root: Path, name: str) -> tuple[Path, str, int]:
    """The run of a name to resume: the folder of all runs, its UID, and number of its next attempt.

    Args:
        root: The own folder of that run; or of all runs, of which the latest is resumed.
        name: Of the run.

    Raises:
        LocalError: There is none.
    """
    for folder in (root, *reversed(records.folders(root, name))):
        found = records.read(folder)
        if found is not None and folder.name == f"{name}-{str(found['metadata']['uid'])[:8]}":
            attempt = int(found["status"]["attempt"]) + 1
            return folder.parent, str(found["metadata"]["uid"]), attempt
    others = sorted({each.name.rpartition("-")[0] for each in records.folders(root)})
    beside = f", only of {', '.join(others)}" if others else ""
    raise LocalError(
        f"{root} holds no run of {name} to resume{beside}; leave --resume out to begin a new one"
    )


def own_folder(name: str, folder: Path | None) -> tuple[Path, dict[str, Any] | None]:
    """The folder of the latest local run of a name, and its record; without one that of all runs.

    Raises:
        LocalError: It is the folder of one run, which has another name.
    """
    root = root_of(name, folder)
    for own in reversed(records.folders(root, name)):
        if (found := records.read(own)) is not None:  # else it never began
            return own, found
    found = records.read(root)
    if found is not None and (of := found["metadata"].get("name")) != name:
        raise LocalError(
            f"the run in {root} is {of}, not {name}; name that one, or another one's --folder"
        )
    return root, found


def own_run(name: str, folder: Path | None) -> tuple[Path, dict[str, Any]]:
    """The own folder of the latest local run of a name, and that run as a cluster would give it.

    Raises:
        LocalError: There is none.
    """
    own, found = own_folder(name, folder)
    if found is None:
        raise LocalError(
            f"there is no run {name} in {own}; begin one by `trainingrun run FILE --local`, or "
            "name its folder with --folder"
        )
    return own, found
