"""`trainingrun submit`: the code into the run's bucket, then the run into the cluster."""

import copy
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ..api.parse import InvalidRunError, parse
from ..api.v1alpha1 import Storage
from .manifest_files import Documents
from .packing import pack, requirement_lines
from .run_folders import CREDENTIALS
from .terminal import CliError

FOLDER = "code"
"""Folder below `storage.uri` in which zip files are kept, each named by its digest."""


@dataclass(frozen=True)
class Submission:
    """A run with its code, all of it valid; nothing is uploaded or applied yet."""

    manifest: dict[str, Any]
    """The TrainingRun as it is to be applied."""
    config_maps: list[dict[str, Any]]
    """The ConfigMaps of its file, which are applied before it."""
    storage: Storage
    """Its bucket."""
    packed: bytes | None
    """The zip file that `training.code` names; None: no code is submitted."""

    @classmethod
    def prepare(
        cls, found: Documents, code: Path | None, requirements: Path | None, file: Path
    ) -> "Submission":
        """Put code and requirements into the file's TrainingRun.

        Args:
            found: What is in the file.
            code: A folder to be packed, for `training.code`.
            requirements: A file of pip's, for `training.requirements`.
            file: The file itself, which is no code. In the zip file it would change
                `training.code` with every field of the run.

        Raises:
            CliError: One of them cannot be used.
        """
        storage = found.only_run().spec.storage
        if found.others:
            raise CliError(
                f"{found.name}: holds {', '.join(found.others)} as well, and submit applies "
                "TrainingRuns and ConfigMaps alone; apply the others with kubectl and move them to "
                "a file of their own"
            )
        manifest = copy.deepcopy(found.manifests[0])
        training, packed = manifest["spec"]["training"], None
        if requirements is not None:
            training["requirements"] = requirement_lines(requirements)
        if code is not None:
            if storage.uri.startswith("file:"):
                raise CliError(
                    f"storage.uri is {storage.uri}, a folder of the pods that this machine does "
                    "not have; use a bucket, or put the code into the image"
                )
            packed = pack(code, file)
            training["code"] = {"uri": f"{_folder(storage)}/{_name(packed)}"}
        try:
            parse(manifest)
        except InvalidRunError as error:
            raise CliError(f"{found.name}: {error}") from None
        return cls(manifest, found.config_map_manifests, storage, packed)

    def upload(self, endpoint: str | None) -> None:
        """Put the code into the bucket, unless it is there already, and say so.

        Args:
            endpoint: URL of the bucket's service as this machine reaches it; default: the run's.

        Raises:
            CliError: The bucket does not take it.
        """
        if self.packed is None:
            return
        try:
            from trainingrun_runtime.store.bucket import Bucket, StorageError
        except ModuleNotFoundError as error:
            raise CliError(
                f"{error.name} is not installed here; install trainingrun[cli] to upload code"
            ) from None
        name, folder = _name(self.packed), _folder(self.storage)
        try:
            bucket = Bucket.open(folder, endpoint or self.storage.endpoint, self.storage.region)
            if bucket.size(name) == len(self.packed):
                typer.echo(f"code {name[:12]} is in {folder} already")
                return
            bucket.upload(name, self.packed)
        except StorageError as error:
            raise CliError(f"the code cannot be uploaded: {error} ({CREDENTIALS})") from None
        typer.echo(f"code {name[:12]} uploaded to {folder}, {len(self.packed) // 1024 + 1} kB")


def _folder(storage: Storage) -> str:
    return f"{storage.uri.rstrip('/')}/{FOLDER}"


def _name(packed: bytes) -> str:
    return f"{hashlib.sha256(packed).hexdigest()}.zip"
