"""`trainingrun submit`: the code into the run's bucket, then the run into the cluster."""

import copy
import hashlib
from pathlib import Path
from typing import Any

import typer

from ..api.parse import InvalidRunError, parse
from ..api.v1alpha1 import Storage, TrainingRun
from .errors import CliError
from .manifest_files import Documents
from .packing import pack, requirement_lines

FOLDER = "code"
"""Folder below `storage.uri` in which zip files are kept, each named by its digest."""


def manifest_with(
    found: Documents, code: Path | None, requirements: Path | None, endpoint: str | None
) -> dict[str, Any]:
    """The file's TrainingRun as it is to be applied; its code is in the bucket by then.

    Args:
        found: What is in the file.
        code: A folder to be packed and uploaded, for `training.code`.
        requirements: A file of pip's, for `training.requirements`.
        endpoint: URL of the bucket's service as this machine reaches it; default: as in the file.

    Raises:
        CliError: One of them cannot be used, or the bucket does not take the code.
    """
    run = found.only_run()
    if found.config_maps:
        raise CliError(
            f"{found.name}: holds ConfigMap {', '.join(sorted(found.config_maps))} as well, and "
            "submit applies the TrainingRun alone; apply the others with kubectl and move them "
            "to a file of their own"
        )
    manifest = copy.deepcopy(found.manifests[0])
    training = manifest["spec"]["training"]
    if requirements is not None:
        training["requirements"] = requirement_lines(requirements)
    if code is not None:
        packed = pack(code)
        name = f"{hashlib.sha256(packed).hexdigest()}.zip"
        training["code"] = {"uri": f"{run.spec.storage.uri.rstrip('/')}/{FOLDER}/{name}"}
        _check(manifest)
        _upload(run.spec.storage, name, packed, endpoint)
    _check(manifest)
    return manifest


def _check(manifest: dict[str, Any]) -> TrainingRun:
    try:
        return parse(manifest)
    except InvalidRunError as error:
        raise CliError(str(error)) from None


def _upload(storage: Storage, name: str, content: bytes, endpoint: str | None) -> None:
    if storage.uri.startswith("file:"):
        raise CliError(
            f"storage.uri is {storage.uri}, a folder of the pods that this machine does not have; "
            "use a bucket, or put the code into the image"
        )
    try:
        from trainingrun_runtime.checkpoints.bucket import Bucket, StorageError
    except ModuleNotFoundError as error:
        raise CliError(
            f"{error.name} is not installed here; install trainingrun[cli] to upload code"
        ) from None
    kilobytes = max(len(content) // 1024, 1)
    try:
        folder = f"{storage.uri.rstrip('/')}/{FOLDER}"
        bucket = Bucket.open(folder, endpoint or storage.endpoint, storage.region)
        if bucket.size(name) == len(content):
            typer.echo(f"code {name[:12]} is in {folder} already")
            return
        bucket.upload(name, content)
    except StorageError as error:
        raise CliError(
            f"the code cannot be uploaded: {error} (submit takes the bucket's credentials from "
            "this shell's environment, such as AWS_ACCESS_KEY_ID, and --endpoint for an endpoint "
            "that only pods reach)"
        ) from None
    typer.echo(f"code {name[:12]} of {kilobytes} kB uploaded to {folder}")
