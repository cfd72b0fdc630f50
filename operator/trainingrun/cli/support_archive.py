"""What a bug report needs of a run, read with its caller's own rights and without secrets."""

import contextlib
import io
import json
import platform
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..api.errors import RunError
from ..api.v1alpha1 import API_VERSION, KIND
from ..client import installation, yaml_text
from ..client.errors import UnreachableError, bucket_access
from ..cluster.resources import RAY_API
from ..local.terminal_text import counted, end_of, plain, plain_lines
from ..reconciling import pod_status
from ..rendering import names
from .masking import MASK, Masking

if TYPE_CHECKING:
    from ..client.kube import Kube

Found = TypeVar("Found")
Object = dict[str, Any]

_LINES = 1000
"""Of each container's log, from its end."""
_MOST_BYTES = 256 * 1024
"""Of each log, from its end."""
_MOST_LOGS = 64
"""Logs that are read of pods, and of the bucket; and documents of a kind."""
_MOST_PODS = 500
_MOST_LISTED = 20_000
_DOCUMENTS = ("settings", "progress", "history", "trace", "stacks", "result", "lease")
"""Folders of the run's folder whose objects are texts about the run."""
_KEY = re.compile(r"[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)*", re.ASCII)
"""Of an object that is read: none that leads out of the archive's folder."""
_LARGEST = 8 * 1024 * 1024
"""Bytes of an object that is read."""
_PAGE = 500
_MOST_PAGES = 10
_NOT_READ = "not-read.txt"
_README = f"""\
What the API server has of one TrainingRun, for a bug report. Read it before you pass it on.

versions.txt      of the command line, the operator, the CRD, Kubernetes
trainingrun.yaml  the TrainingRun with its status, and the progress that its ranks last reported
rayjobs.yaml, rayclusters.yaml, pods.yaml
                  what the operator and KubeRay made of it, and is still there
events.yaml       the Events about all of these that the API server still has
logs/             the last {_LINES} lines of each container
bucket.txt        the names and sizes of what is in the run's folder of the bucket
bucket/           settings, progress, losses and stacks from there, and the end of what each rank of
                  the newest attempts printed
{_NOT_READ}      what could not be read, and why; absent: everything was

No Secret and no ConfigMap was read. {MASK} stands for values of environment variables, arguments,
annotations, and whatever looks like a secret in a text. A secret that a process prints under no
name and in no known form cannot be recognized.
"""


@dataclass
class _Reading:
    """What has been read, and what could not be."""

    kube: "Kube"
    not_read: list[str] = field(default_factory=list)

    def get(self, what: str, call: Callable[[], Found]) -> Found | None:
        """What the call returns; None: it is refused or fails, which is kept as a sentence.

        Raises:
            UnreachableError: The cluster does not answer.
        """
        try:
            return call()
        except UnreachableError:
            raise
        except RunError as error:
            self.not_read.append(plain(f"{what}: {error}"))
            return None

    def all_of(self, what: str, path: str, most: int, **query: str) -> list[Object]:
        """The objects at a path, in pages."""
        found: list[Object] = []
        query["limit"] = str(_PAGE)
        while page := self.get(what, lambda: self.kube.get(path, **query)):
            found += page.get("items") or []
            query["continue"] = (page.get("metadata") or {}).get("continue") or ""
            if not query["continue"]:
                break
            if len(found) >= most:
                self.not_read.append(f"{what}: more than {most}; the others are left out")
                break
        return found


def collect(
    kube: "Kube", run: Mapping[str, Any], endpoint: str | None, now: datetime
) -> tuple[bytes, list[str]]:
    """A .tar.gz, and what could not be read: a sentence for each.

    Args:
        kube: The cluster.
        run: The TrainingRun.
        endpoint: URL of the bucket's service from here; None: that of the run.
        now: When it is asked for.

    Raises:
        RunError: The cluster does not answer.
    """
    reading = _Reading(kube)
    name, namespace = run["metadata"]["name"], kube.namespace
    selector = f"{names.RUN_LABEL}={name},{names.RUN_UID_LABEL}={run['metadata']['uid']}"
    ray = f"/apis/{RAY_API}/namespaces/{namespace}"
    core = f"/api/v1/namespaces/{namespace}"

    owned = {
        kind: [
            {"apiVersion": version, "kind": kind, **each}
            for each in reading.all_of(what, path, _MOST_PODS, labelSelector=selector)
        ]
        for kind, version, what, path in (
            ("RayJob", RAY_API, "RayJobs", f"{ray}/rayjobs"),
            ("RayCluster", RAY_API, "RayClusters", f"{ray}/rayclusters"),
            ("Pod", "v1", "pods", f"{core}/pods"),
        )
    }
    objects = [{"apiVersion": API_VERSION, "kind": KIND, **run}]
    objects += [each for found in owned.values() for each in found]
    about = {(each["kind"], each["metadata"]["name"]) for each in objects}
    events = [
        event
        for event in reading.all_of("events", f"{core}/events", _PAGE * _MOST_PAGES)
        if (event["involvedObject"].get("kind"), event["involvedObject"].get("name")) in about
    ]
    masking = Masking(objects)

    def as_yaml(found: Iterable[Mapping[str, Any]]) -> str:
        return yaml_text.dump(*map(masking.manifest, found))

    files = {
        "README.txt": _README,
        "versions.txt": masking.text(_versions(reading, now)),
        "trainingrun.yaml": as_yaml(objects[:1]),
        **{f"{kind.lower()}s.yaml": as_yaml(found) for kind, found in owned.items()},
        "events.yaml": as_yaml(events),
        **{path: masking.text(text) for path, text in _logs(reading, owned["Pod"])},
        **_of_bucket(reading, run, endpoint, masking),
    }
    not_read = [masking.text(sentence) for sentence in reading.not_read]
    if not_read:
        files[_NOT_READ] = "".join(f"{sentence}\n" for sentence in not_read)
    return _archive(f"{name}-report", files, now), not_read


def _versions(reading: _Reading, now: datetime) -> str:
    kubernetes = reading.get("version of Kubernetes", lambda: reading.kube.get("/version"))
    rows = [
        ("time", f"{now:%Y-%m-%dT%H:%M:%SZ}"),
        ("trainingrun", installation.own_version()),
        ("python", f"{platform.python_version()} on {platform.platform()}"),
        ("kubernetes", (kubernetes or {}).get("gitVersion", "unknown")),
        *(reading.get("versions", lambda: installation.in_cluster(reading.kube)) or []),
    ]
    return "".join(f"{name}: {plain(value)}\n" for name, value in rows)


def _logs(reading: _Reading, pods: Sequence[Object]) -> list[tuple[str, str]]:
    """The ends of the containers' logs, by path: of heads first, then of pods that do not run."""

    def order(pod: Object) -> tuple[bool, bool, str]:
        troubled = pod_status.phase(pod) != "Running" or _restarts(pod) > 0
        return not pod_status.is_head(pod), not troubled, pod_status.name(pod)

    wanted = [
        (pod_status.name(pod), status["name"], previous)
        for pod in sorted(pods, key=order)
        for status in _containers(pod)
        for previous in ([False, True] if status.get("restartCount") else [False])
    ]
    found = []
    nodes = {pod_status.name(pod): pod_status.node_name(pod) for pod in pods}
    silent: set[str | None] = set()
    for pod, container, previous in wanted[:_MOST_LOGS]:
        name = f"{pod}/{container}" + (".previous" if previous else "")
        if nodes[pod] in silent:  # a lost node makes each request wait
            reading.not_read.append(f"log of {name}: node {nodes[pod]} does not answer")
            continue
        call = partial(reading.kube.log_tail, pod, container, _LINES, _MOST_BYTES, previous)
        try:
            text = reading.get(f"log of {name}", call)
        except UnreachableError as error:
            silent.add(nodes[pod])
            reading.not_read.append(plain(f"log of {name}: {error}"))
            continue
        if text is not None:
            found.append((f"logs/{name}.log", plain_lines(text)))
    if len(wanted) > _MOST_LOGS:
        left_out = len(wanted) - _MOST_LOGS
        reading.not_read.append(f"logs: those of {counted(left_out, 'container')} are left out")
    return found


def _containers(pod: Object) -> list[Object]:
    """The statuses of the containers that have begun."""
    status = pod.get("status") or {}
    each = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [
        one
        for one in each
        if one.get("restartCount") or not (one.get("state") or {}).get("waiting")
    ]


def _restarts(pod: Object) -> int:
    return sum(one.get("restartCount") or 0 for one in _containers(pod))


def _of_bucket(
    reading: _Reading, run: Mapping[str, Any], endpoint: str | None, masking: Masking
) -> dict[str, str]:
    """What is in the run's folder, by path: it is there when the pods are gone."""
    storage, files = run["spec"].get("storage") or {}, dict[str, str]()

    def read() -> None:
        if "uri" not in storage:
            raise RunError("the run has no storage.uri until it begins")
        if storage["uri"].startswith("file:"):
            raise RunError(f"{storage['uri']} is a folder of the pods")
        with bucket_access():
            from trainingrun_runtime.store.bucket import Bucket

            service = endpoint or storage.get("endpoint")
            bucket = Bucket.open(names.folder_of(run), service, storage.get("region"))
            entries = [entry for entry in bucket.list() if entry.size]
            listed = "".join(f"{entry.size:>12} {entry.key}\n" for entry in entries[:_MOST_LISTED])
            files["bucket.txt"] = masking.text(listed)
            sizes = {entry.key: entry.size for entry in entries}
            for key in chosen(sizes):
                if sizes[key] <= _LARGEST and (content := bucket.get(key)) is not None:
                    files[f"bucket/{key}"] = _without_secrets(key, content, masking)

    reading.get("bucket", read)
    return files


def chosen(keys: Iterable[str]) -> list[str]:
    """Which objects of a run's folder belong into an archive.

    The newest stacks and documents, and of what was printed the newest part of each driver and
    rank, of the newest attempts.
    """
    documents: dict[str, list[str]] = {kind: [] for kind in _DOCUMENTS}
    parts: dict[str, str] = {}
    for key in sorted(filter(_KEY.fullmatch, keys), key=_in_order):
        folder, _, _ = key.rpartition("/")
        kind = folder.partition("/")[0]
        if kind in documents:
            documents[kind].append(key)
        elif kind == "logs":
            parts[folder] = key
    newest = [parts[folder] for folder in _newest_first(parts)]
    return [key for found in documents.values() for key in found[-_MOST_LOGS:]] + newest[
        :_MOST_LOGS
    ]


def _newest_first(parts: Mapping[str, str]) -> list[str]:
    """Folders of what was printed: of the newest attempt first, and of each its driver first.

    Then the newest worker group. Each driver numbers its groups from 1, so that the names of the
    parts, which are times, tell it.

    Args:
        parts: The newest part of each folder.
    """
    times: dict[str, str] = {}
    for folder, key in parts.items():
        group, time = folder.rpartition("/")[0], key.rpartition("/")[2]
        times[group] = max(times.get(group, ""), time)
    found = sorted(parts, key=_in_order)
    found.sort(key=lambda folder: times[folder.rpartition("/")[0]], reverse=True)
    return sorted(found, key=lambda folder: (-_attempt(folder), "/rank-" in folder))


def _attempt(key: str) -> int:
    """Of a part of a log, `logs/<attempt>/…`."""
    return int(next((part for part in key.split("/")[1:2] if part.isdecimal()), 0))


def _in_order(key: str) -> list[tuple[int, str]]:
    """So that 9 sorts before 10."""
    return [(int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", key)]


def _without_secrets(key: str, content: bytes, masking: Masking) -> str:
    if key.endswith(".json"):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(content)
            return json.dumps(masking.manifest({"": found})[""], indent=2) + "\n"
    return masking.text(plain_lines(end_of(content, _MOST_BYTES).decode(errors="replace")))


def _archive(folder: str, files: Mapping[str, str], now: datetime) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(now.timestamp())
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()
