"""Whether what is installed works for this user."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..api.crd import crd
from ..api.errors import RunError
from ..api.quantities import amount
from ..api.v1alpha1 import API_VERSION, GROUP, KIND
from ..cluster.kuberay import crd_path, crd_verdict
from ..cluster.resources import RAY_API
from .errors import ForbiddenError, NotFoundError, NotServedError, bucket_access
from .installation import OPERATOR, TIMEOUT_S, Deployment, deployments, labeled, own_version
from .sources import Cluster

if TYPE_CHECKING:
    from .kube import Kube

_KUBERAY = "app.kubernetes.io/name in (kuberay-operator,kuberay)"
"""Its name in KubeRay's chart, and in its own manifests."""
_SETTING = "TRAININGRUN_OPERATOR_"
_MOST_NAMED = 6
"""Fields or limits that a sentence names."""

_RIGHTS: Mapping[tuple[str, str, str], str] = {
    ("list", GROUP, "trainingruns"): (
        "list, ui, cost, export, checkpoints prune, retry without --name"
    ),
    ("get", GROUP, "trainingruns"): "get, watch, ranks, top",
    ("create", GROUP, "trainingruns"): "submit, retry",
    ("patch", GROUP, "trainingruns"): "submit, suspend, resume",
    ("delete", GROUP, "trainingruns"): "delete",
    ("create", "", "configmaps"): "submit, of a file with ConfigMaps",
    ("patch", "", "configmaps"): "submit, of a file with ConfigMaps",
    ("list", "", "events"): "events, report",
    ("list", "", "pods"): "logs, shell, dashboard, report, trace",
    ("get", "", "pods/log"): "logs, report",
    ("get", "", "pods/exec"): "shell, stacks --now",
    ("create", "", "pods/exec"): "shell, stacks --now",
    ("get", "", "pods/portforward"): "dashboard",
    ("create", "", "pods/portforward"): "dashboard",
    ("get", "", "secrets"): "dashboard",
    ("list", "ray.io", "rayjobs"): "report, trace",
    ("list", "ray.io", "rayclusters"): "report, trace",
}
"""The commands that need each right: verb, API group and resource."""


class Verdict(StrEnum):
    """What is found about one thing."""

    OK = "ok"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Finding(NamedTuple):
    """One thing that a run needs."""

    verdict: Verdict
    what: str
    sentence: str
    """What was found and, where it is wrong, what to do."""


def of_cluster(cluster: Cluster) -> Iterator[Finding]:
    """What a run needs of the cluster, and of this user's rights in it."""
    try:
        kube = cluster.kube
        found = kube.get("/version", TIMEOUT_S)
    except RunError as error:
        advice = "; nothing else in it can be checked: see `kubectl cluster-info`"
        yield Finding(Verdict.WRONG, "cluster", f"{error}{advice}")
        return
    yield Finding(
        Verdict.OK, "cluster", f"Kubernetes {found.get('gitVersion')} answers at {kube.url}"
    )
    for what, check in (
        ("CRD", _crd),
        ("KubeRay's CRDs", _kuberay_crds),
        ("KubeRay", _kuberay),
        ("operator", _operator),
        ("namespace", _namespace),
        ("rights", _rights),
        ("quota", _quota),
    ):
        try:
            yield from (Finding(verdict, what, sentence) for verdict, sentence in check(kube))
        except RunError as error:
            yield Finding(Verdict.UNKNOWN, what, str(error))


_Found = Iterator[tuple[Verdict, str]]


def _crd(kube: "Kube") -> _Found:
    try:
        found = kube.get(crd_path(API_VERSION, KIND), TIMEOUT_S, has="spec")
    except NotFoundError:
        yield Verdict.WRONG, "TrainingRun is not installed; install the operator's chart"
        return
    except ForbiddenError as error:
        if _serves(kube, API_VERSION, KIND):
            yield Verdict.UNKNOWN, f"{API_VERSION} is served, its version is unknown: {error}"
        else:
            yield Verdict.WRONG, "TrainingRun is not installed; install the operator's chart"
        return
    installed = f"TrainingRun is of version {labeled(found) or '(no label)'}"
    known, there = set(_fields(crd())), set(_fields(found))
    if missing := sorted(known - there):
        yield (
            Verdict.WRONG,
            f"{installed} and lacks {_first(missing)}, which this command "
            f"({own_version()}) writes; upgrade the chart with its CRD",
        )
    elif unknown := sorted(there - known):
        yield (
            Verdict.WRONG,
            f"{installed} and has {_first(unknown)}, which this command "
            f"({own_version()}) does not know; upgrade this command",
        )
    else:
        yield Verdict.OK, f"{installed} and has the fields that this command knows"


def _serves(kube: "Kube", api_version: str, kind: str) -> bool:
    """By discovery, which every user may read."""
    try:
        found = kube.get(f"/apis/{api_version}", TIMEOUT_S, has="resources")
    except NotServedError:
        return False
    return any(each["kind"] == kind for each in found["resources"])


def _fields(found: Mapping[str, Any]) -> Iterator[str]:
    """The paths of all fields of a CRD's v1alpha1; of what keeps unknown ones, nothing below."""

    def below(path: str, node: Mapping[str, Any]) -> Iterator[str]:
        if node.get("x-kubernetes-preserve-unknown-fields"):
            return
        for name, child in (node.get("properties") or {}).items():
            yield f"{path}{name}"
            yield from below(f"{path}{name}.", child.get("items") or child)

    name = API_VERSION.partition("/")[2]
    for served in found["spec"]["versions"]:
        if served["name"] == name:
            spec = served["schema"]["openAPIV3Schema"]["properties"]["spec"]
            yield from below("spec.", spec)


def _first(names: list[str]) -> str:
    """Names for a sentence, of fields without those below them."""
    alone = [name for name in names if name.rpartition(".")[0] not in names]
    rest = f" and {len(alone) - _MOST_NAMED} more" if len(alone) > _MOST_NAMED else ""
    return ", ".join(alone[:_MOST_NAMED]) + rest


def _kuberay_crds(kube: "Kube") -> _Found:
    install = "install KubeRay 1.6 or later"
    for kind in ("RayJob", "RayCluster"):
        try:
            found = kube.get(crd_path(RAY_API, kind), TIMEOUT_S, has="spec")
        except NotFoundError:
            yield Verdict.WRONG, f"{kind} is not installed; {install}"
            return
        except ForbiddenError as error:
            if not _serves(kube, RAY_API, kind):
                yield Verdict.WRONG, f"{kind} is not installed; {install}"
            else:
                yield Verdict.UNKNOWN, f"{kind} is served, its version is unknown: {error}"
            return
        if kind == "RayJob" and crd_verdict(found) == "too-old":
            yield Verdict.WRONG, f"RayJob is older than KubeRay 1.6; upgrade its CRDs: {install}"
            return
    yield Verdict.OK, "RayJob and RayCluster are those of KubeRay 1.6 or later"


def _kuberay(kube: "Kube") -> _Found:
    found = deployments(kube, _KUBERAY)
    if not found:
        yield (
            Verdict.UNKNOWN,
            "no Deployment is labeled as KubeRay's operator; if it is installed under another "
            "name, see its log, else install KubeRay 1.6 or later",
        )
    yield from _serving(kube, found, _kuberay_namespaces, "the value watchNamespace of its chart")


def _kuberay_namespaces(found: Deployment) -> list[str] | None:
    """Those that it watches; none: all; None: a file says which."""
    arguments = " ".join(found.arguments).replace("=", " ").split()
    if "--config" in arguments:
        return None
    if "--watch-namespace" not in arguments:
        return []
    return [part for part in arguments[arguments.index("--watch-namespace") + 1].split(",") if part]


def _operator(kube: "Kube") -> _Found:
    found = deployments(kube, OPERATOR)
    if not found:
        yield Verdict.WRONG, "no Deployment of the operator is there; install its chart"
        return

    def watched(each: Deployment) -> list[str]:
        return [
            part for part in each.environment.get(f"{_SETTING}NAMESPACES", "").split(",") if part
        ]

    yield from _serving(kube, found, watched, "the value watchNamespaces of its chart")
    for each in found:
        if each.namespace == kube.namespace:
            yield (
                Verdict.WRONG,
                f"namespace {kube.namespace} is the operator's own, in which no run begins; name "
                "another with --namespace",
            )
        image = each.environment.get(f"{_SETTING}IMAGE", "")
        if "/" in image:
            yield Verdict.OK, f"runs that name no image train in {image}"
        else:
            yield (
                Verdict.UNKNOWN,
                f"runs that name no image train in {image or 'none'}, which names no registry; "
                "unless the nodes have it, set training.image of the chart, or image in each run",
            )


def _serving(kube: "Kube", found: list[Deployment], namespaces: Any, setting: str) -> _Found:
    """Whether a Deployment is ready, and one watches the namespace."""
    watching = 0
    for each in found:
        watched = namespaces(each)
        version_ = f" of version {each.version}" if each.version else ""
        if watched is None:
            where = "the namespaces that its configuration file names"
        else:
            where = f"{'namespaces ' if watched else ''}{', '.join(watched) or 'every namespace'}"
        watching += not watched or kube.namespace in watched
        if each.ready < 1:
            yield (
                Verdict.WRONG,
                f"{each}{version_} has no pod that is ready, of {each.wanted}; see its log: "
                f"{each.log}",
            )
        else:
            yield Verdict.OK, f"{each}{version_} is ready and watches {where}"
    if found and not watching:
        yield Verdict.WRONG, f"none watches namespace {kube.namespace}; add it to {setting}"


def _namespace(kube: "Kube") -> _Found:

    name = kube.namespace
    try:
        kube.get(f"/api/v1/namespaces/{name}", TIMEOUT_S)
    except NotFoundError:
        advice = f"create it (kubectl create namespace {name}), or name another with --namespace"
        yield Verdict.WRONG, f"there is no namespace {name}; {advice}"
        return
    yield Verdict.OK, f"{name} is there"


def _rights(kube: "Kube") -> _Found:
    missing = [right for right in _RIGHTS if not kube.may(*right)]
    where = f"in namespace {kube.namespace}"
    if not missing:
        yield Verdict.OK, f"this user may do {where} what every command needs"
        return
    said = "; ".join(
        f"{verb} {resource} (for {_RIGHTS[verb, group, resource]})"
        for verb, group, resource in missing
    )
    if not any(group == GROUP for _, group, _ in missing):
        yield Verdict.OK, f"this user may submit and follow runs {where}, but not: {said}"
        return
    yield (
        Verdict.UNKNOWN,  # wrong for those alone who are to submit runs
        f"this user may not {where}: {said}; for these commands ask for the ClusterRole edit "
        "there, which holds the rights on TrainingRuns with the chart's rbac.aggregate",
    )


def _quota(kube: "Kube") -> _Found:
    where = f"namespace {kube.namespace}"
    path = f"/api/v1/namespaces/{kube.namespace}/resourcequotas"
    found = kube.get(path, TIMEOUT_S, has="items")["items"]
    if not found:
        yield Verdict.OK, f"no ResourceQuota limits {where}"
    for quota in found:
        name, status = quota["metadata"]["name"], quota.get("status") or {}
        used = status.get("used") or {}
        limits = {
            resource: (used.get(resource, "0"), hard)
            for resource, hard in (status.get("hard") or quota["spec"].get("hard") or {}).items()
        }
        said = [f"{resource} {have} of {hard}" for resource, (have, hard) in limits.items()]
        full = [resource for resource, (have, hard) in limits.items() if _used_up(have, hard)]
        if full:
            yield (
                Verdict.WRONG,
                f"ResourceQuota {name} of {where} is used up: {_first(full)} ({_first(said)}); "
                "runs wait until it is raised, or something there ends",
            )
        else:
            yield Verdict.OK, f"ResourceQuota {name} of {where}: {_first(said)} used"


def _used_up(used: str, hard: str) -> bool:
    try:
        return amount(str(used)) >= amount(str(hard)) > 0  # 0: it is not to be used at all
    except ValueError:  # a notation that no run is written in
        return used == hard


def of_bucket(uri: str | None, endpoint: str | None) -> Finding:
    """What a run needs of its bucket, which is tried."""
    if uri is None:
        return Finding(
            Verdict.UNKNOWN,
            "bucket",
            "not checked; name one with --storage s3://bucket/folder, and an object is written "
            "there and deleted again",
        )
    if uri.startswith("file:") or "://" not in uri:
        sentence = f"--storage is {uri}, which is no bucket; write for example s3://bucket/folder"
        return Finding(Verdict.WRONG, "bucket", sentence)
    try:
        with bucket_access():
            from trainingrun_runtime.store.bucket import Bucket
            from trainingrun_runtime.store.bucket_check import check

            check(Bucket.open(uri, endpoint))
    except RunError as error:
        return Finding(Verdict.WRONG, "bucket", str(error))
    if uri.startswith("pvc:"):
        sentence = f"{uri} can be written here, and creates an object only once"
        return Finding(Verdict.OK, "bucket", sentence)
    return Finding(
        Verdict.OK,
        "bucket",
        f"{uri} can be written with this shell's credentials, in parts too, and honors "
        "conditional writes; pods have credentials of their own",
    )
