"""What a bug report needs of a run, read with its caller's own rights and without secrets."""

import io
import platform
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..api.v1alpha1 import API_VERSION, KIND
from ..cluster.resources import RAY_API
from ..local.terminal_text import counted, plain, plain_lines
from ..reconciling import pod_status
from ..rendering import names
from . import installation, yaml_text
from .common import CliError
from .masking import MASK, Masking

if TYPE_CHECKING:
    from .kube import Kube

Found = TypeVar("Found")
Object = dict[str, Any]

_LINES = 1000
"""Of each container's log, from its end."""
_MOST_LOGS = 64
"""Containers whose logs are read."""
_MOST_PODS = 500
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
        """What the call returns; None: it is refused or fails, which is kept as a sentence."""
        try:
            return call()
        except CliError as error:
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


def collect(kube: "Kube", run: Mapping[str, Any], now: datetime) -> tuple[bytes, list[str]]:
    """A .tar.gz, and what could not be read: a sentence for each.

    Args:
        kube: The cluster.
        run: The TrainingRun.
        now: When it is asked for.
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
    for pod, container, previous in wanted[:_MOST_LOGS]:
        name = f"{pod}/{container}" + (".previous" if previous else "")
        call = partial(reading.kube.log_tail, pod, container, _LINES, previous)
        if (text := reading.get(f"log of {name}", call)) is not None:
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


def _archive(folder: str, files: Mapping[str, str], now: datetime) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in files.items():
            data = text.encode(errors="replace")
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size, member.mode, member.mtime = len(data), 0o600, int(now.timestamp())
            archive.addfile(member, io.BytesIO(data))
    return content.getvalue()
