"""Begins runs, and finds those that there are."""

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..api.errors import RunError
from ..api.parse import parse
from ..api.v1alpha1 import API_VERSION, KIND, TrainingRun
from ..local import records
from ..local.folder import all_roots, root_of
from ..rendering.defaults import applied as applied_defaults
from . import manifest_files
from .defaults import Lookup, no_defaults, where_storage_is_missing
from .function_code import code_of
from .local_process import LocalProcess
from .manifest_files import Change
from .places import LOG
from .retried_run import merged
from .run import Run
from .sources import Cluster, Source, ThisMachine
from .submitting import Submission, name_of, pack

Train = str | os.PathLike[str] | Mapping[str, Any] | TrainingRun | Callable[..., Any]
"""What is trained: a function, `module:function` of the image, a YAML file or its content."""

_FUNCTION = re.compile(r"[\w.]+:\w+")
_KINDS = ("nvidia", "amd", "tpu", "gaudi", "neuron")
_NO_BUCKET = "s3://this-machine/unused"
"""Where a local run needs a bucket by its schema; its folder takes the place."""


class Client:
    """TrainingRuns of a cluster, or with `local` those of this machine."""

    def __init__(
        self,
        namespace: str | None = None,
        context: str | None = None,
        *,
        local: bool = False,
        folder: str | os.PathLike[str] | None = None,
        endpoint: str | None = None,
    ) -> None:
        """Connect as kubectl would, to no cluster with `local`.

        Args:
            namespace: Default: the context's, or in a pod the pod's own.
            context: Of the kubeconfig; default: the current one, and in a pod without a kubeconfig
                its service account.
            local: Train on this machine, as `trainingrun run --local` does.
            folder: Of the runs of this machine; default: `trainingrun-local/<name>`.
            endpoint: URL of the buckets' service as this machine reaches it; default: each run's.

        Raises:
            RunError: There is no usable kubeconfig, or the arguments exclude each other.
        """
        local = local or folder is not None
        if local and (namespace or context):
            raise RunError("local=True needs no namespace and no context; leave them out")
        self._endpoint = endpoint
        self._source: Source = Cluster(namespace, context)
        if local:
            self._source = ThisMachine(Path(folder).absolute() if folder is not None else None)
        else:
            self._source.kube  # noqa: B018 - a kubeconfig that is missing is said now

    def submit(
        self,
        train: Train,
        *,
        config: Mapping[str, Any] | None = None,
        workers: int | Mapping[str, Any] | None = None,
        accelerator: str | Mapping[str, Any] | None = None,
        storage: str | Mapping[str, Any] | None = None,
        name: str | None = None,
        code: str | os.PathLike[str] | None = None,
        requirements: list[str] | None = None,
        **spec: Any,
    ) -> Run:
        """Begin a run. What is given here changes the fields of a file, a mapping or a model.

        Args:
            train: A function of a module or of a notebook cell, whose code is sent;
                `module:function` of the image; or a TrainingRun: a YAML file, a mapping, a model.
            config: `training.config`, with which the function is called.
            workers: `workers.count`, the world size, or all of `workers`.
            accelerator: Of each worker: nvidia, amd, tpu, gaudi or neuron; the product of an NVIDIA
                GPU as nodes are labeled; or all of `workers.accelerator`.
            storage: `storage.uri`, or all of `storage`.
            name: Of the run; default: the function's, and five random characters.
            code: Folder with all code, which is packed as `trainingrun submit --code` does.
            requirements: `training.requirements`.
            spec: Further fields of the spec, as in YAML: `checkpoints={"everySeconds": 60}`.

        Raises:
            RunError: The run is not valid, its code cannot be sent, or the cluster, the bucket or
                this machine does not take it.
        """
        lookup = self._lookup_of_storage()
        given = {
            "training": _given(config=config, requirements=requirements),
            "workers": {
                **_workers(workers),
                **_given(accelerator=_accelerator(accelerator)),
            },
            "storage": {"uri": storage} if isinstance(storage, str) else storage or {},
        }
        own_spec = {part: fields for part, fields in given.items() if fields}

        def changed(manifest: Any) -> Any:
            if not isinstance(manifest, Mapping):
                return manifest  # which is refused as what it is
            found = merged(merged(manifest, {"spec": spec}), {"spec": own_spec})
            if name is not None:
                found = merged(found, {"metadata": {"name": name, "generateName": None}})
            if config is not None and _is_function(train):
                found["spec"]["training"]["config"] = config  # no change: None in it is a value
            if isinstance(self._source, ThisMachine):
                found = {**found, "spec": _with_a_bucket(found["spec"])}
            return manifest_files.named(_plain(found))

        folder = Path(code) if code else None
        manifest, config_maps, packed, beside = _read(train, folder, lookup, changed)
        if isinstance(self._source, ThisMachine):
            return self._begin_here(self._source, manifest, config_maps, packed, beside)
        applied = applied_defaults(manifest, lookup(manifest))
        submission = Submission.of(manifest, config_maps, packed, applied)
        metadata, source = manifest["metadata"], self._source
        if (other := metadata.get("namespace")) and other != source.kube.namespace:
            if source.namespace:
                raise RunError(
                    f"metadata.namespace is {other}, and the client's is {source.namespace}; leave "
                    "one of them out"
                )
            source = source.within(other)
        submission.apply(source.kube, self._endpoint, LOG.info)
        return Run(source, metadata["name"], self._endpoint)

    def _lookup_of_storage(self) -> Lookup:
        source = self._source
        if isinstance(source, ThisMachine):
            return no_defaults
        return where_storage_is_missing(lambda: source.kube, LOG.info)

    def _begin_here(
        self,
        source: ThisMachine,
        manifest: dict[str, Any],
        config_maps: list[dict[str, Any]],
        packed: bytes | None,
        beside: Path | None,
    ) -> Run:
        name = parse(manifest).metadata.name
        root = root_of(name, source.folder).absolute()
        if packed is not None:
            file = root / "code" / name_of(packed)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                # The driver of another run may read it now.
                if not file.is_file() or file.stat().st_size != len(packed):
                    records.write(file, packed)
            except OSError as error:
                raise RunError(f"{file} cannot be written: {error.strerror}") from None
            manifest["spec"]["training"]["code"] = {"uri": file.as_uri()}
        process = LocalProcess([manifest, *config_maps], root, beside)
        process.start()
        return Run(ThisMachine(root, process.own), name, self._endpoint, process)

    def get(self, name: str) -> Run:
        """A run that there is.

        Raises:
            RunError: There is none of that name.
        """
        self._source.run(name)
        return self._known(name)

    def list(self, everywhere: bool = False) -> "list[Run]":
        """The runs of the namespace, of all of them, or of this machine.

        Args:
            everywhere: Of all namespaces.
        """
        source = self._source
        if isinstance(source, ThisMachine):
            return [
                self._here(source, own, run["metadata"]["name"])
                for own, run in records.all_runs(all_roots(source.folder))
            ]
        found = [each["metadata"] for each in source.runs(everywhere)]
        return [self._known(each["name"], each["namespace"]) for each in found]

    def _known(self, name: str, namespace: str | None = None) -> Run:
        source = self._source
        if isinstance(source, ThisMachine):
            return self._here(source, source.own_run(name)[0], name)
        if namespace not in (None, source.kube.namespace):
            source = source.within(namespace)
        return Run(source, name, self._endpoint)

    def _here(self, source: ThisMachine, own: Path, name: str) -> Run:
        return Run(ThisMachine(source.folder, own.absolute()), name, self._endpoint)


def _workers(wanted: int | Mapping[str, Any] | None) -> Mapping[str, Any]:
    if wanted is None or isinstance(wanted, Mapping):
        return wanted or {}
    return {"count": wanted}  # of another type, too, which the schema refuses in a sentence


def _given(**arguments: Any) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _with_a_bucket(spec: dict[str, Any]) -> dict[str, Any]:
    storage = spec.get("storage") or {}
    if not isinstance(storage, Mapping):
        return spec
    return {**spec, "storage": {"uri": _NO_BUCKET, **storage}}


def _is_function(train: Train) -> bool:
    if not isinstance(train, str):
        return callable(train)
    return _FUNCTION.fullmatch(train) is not None and not Path(train).exists()


def _read(
    train: Train, folder: Path | None, lookup: Lookup, change: Change
) -> tuple[dict[str, Any], list[dict[str, Any]], bytes | None, Path | None]:
    """The TrainingRun with its changes, its ConfigMaps, its code, and the folder of its file."""
    function: str | None = None
    file = Path(train) if isinstance(train, str | os.PathLike) else None
    packed = pack(folder, file) if folder is not None and not callable(train) else None
    if isinstance(train, TrainingRun):
        return change(_of_model(train)), [], packed, None
    if isinstance(train, Mapping):
        return change(train), [], packed, None
    if callable(train):
        code = code_of(train, folder)
        function, packed = code.function, code.packed
    elif isinstance(train, str) and _is_function(train):
        function = train
    if function is not None:
        prefix = re.sub(r"[^a-z0-9]+", "-", function.partition(":")[2].lower()).strip("-") or "run"
        manifest = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"generateName": f"{prefix[:30]}-"},
            "spec": {"training": {"function": function}},
        }
        return change(manifest), [], packed, None
    if file is None:
        raise RunError(
            f"{train!r} cannot be trained; pass a function, module:function of the image, or a "
            "TrainingRun as a YAML file, a mapping or a model"
        )
    submission = Submission.prepare(manifest_files.read(file, lookup, change), None, None, file)
    return submission.manifest, submission.config_maps, packed, file.absolute().parent


def _of_model(run: TrainingRun) -> dict[str, Any]:
    """A model as it is written: what was not set, and what the API server sets, is left out."""
    found = run.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    kept = ("name", "namespace", "labels", "annotations")
    metadata = {key: value for key, value in found["metadata"].items() if key in kept}
    return {**found, "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata}


def _accelerator(wanted: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if wanted is None or isinstance(wanted, Mapping):
        return wanted
    if wanted in _KINDS:
        return {"kind": wanted}
    return {"kind": "nvidia", "product": wanted}


def _plain(manifest: dict[str, Any]) -> dict[str, Any]:
    """The same as JSON has it: tuples are lists, and so on.

    Raises:
        RunError: JSON has no such value.
    """
    try:
        found: dict[str, Any] = json.loads(json.dumps(manifest, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise RunError(
            f"config or another field is not plain data ({error}); pass numbers, texts, lists and "
            "mappings"
        ) from None
    return found
