"""The folder that takes the bucket's place, with the logs beside the runs in it."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..api.v1alpha1 import Storage, TrainingRun
from ..rendering import names
from .local_error import LocalError

_LATEST = "latest.json"


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
        root = (root or Path("trainingrun-local") / run.metadata.name).absolute()
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

    def write_script(self, config_maps: Mapping[str, Mapping[str, str]]) -> Path | None:
        """Write the run's script where Python finds it, unless it is a file of the image.

        Returns:
            Its path; None if the run trains a function.

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
            if not path.is_file():
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
