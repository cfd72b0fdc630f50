"""What a part of a pod names in another one: volumes, ports, and images of containers; and what of
a container is in two templates, or rendered: names of ports, requests and limits.

Kubernetes looks at it only in a pod that is made, or that runs.
"""

from collections.abc import Iterator, Mapping, Sequence
from posixpath import normpath
from typing import Any, NamedTuple

from trainingrun_protocol.variable_references import with_variables

from .pod_schema import Fault, Location, amount

_LISTS = ("containers", "initContainers")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HOOKS = ("postStart", "preStop")
_OF_ONE_POD = frozenset(
    (
        *("emptyDir", "ephemeral", "configMap", "secret", "projected", "downwardAPI", "image"),
        "gitRepo",
    )
)
"""Sources of a volume that each pod has for itself, or that nothing is written to."""
_OWN_OF_PODS = ("POD_NAME", "NODE_NAME", "RAY_CLOUD_INSTANCE_ID")
"""Variables that the operator or KubeRay sets, of which each pod has another value."""
_ALIKE = (
    "metadata.namespace",
    "metadata.labels",
    "metadata.annotations",
    "spec.serviceAccountName",
)
"""How the paths of the other fields of a pod begin."""

MOST_NAMES = 10
"""That a sentence lists."""

Templates = Sequence[tuple[Location, Mapping[str, Any]]]
"""Pod templates in the order in which they are merged, each with where it is."""


class Pod(NamedTuple):
    """A pod as it is rendered, before it is merged with templates."""

    container: str
    """Name of Ray's container."""
    other: str
    """Name of Ray's container in the other pods, which the first template may have for them."""
    volumes: Sequence[str]
    """Names of the volumes."""
    ports: Mapping[str, int]
    """Ports of Ray's container by their names."""
    resources: Mapping[str, str]
    """What Ray's container requests, and is limited to."""


def faults(pod: Pod, templates: Templates) -> Iterator[Fault]:
    """What is named and not there, in the templates that are merged over a pod, or twice, and
    limits that do not fit the requests.
    """
    found = _specs(templates)
    yield from _port_names(pod, found)
    yield from _limits(pod, found)
    volumes = {*pod.volumes, *(v.get("name") for _, s in found for v in _items(s, "volumes"))}
    ports: dict[Any, set[Any]] = {pod.container: set(pod.ports)}
    with_image: set[Any] = {pod.container}
    for _, container in _containers(pod, found):
        name = container.get("name")
        ports.setdefault(name, set()).update(
            port.get("name") for port in _items(container, "ports")
        )
        if container.get("image"):
            with_image.add(name)
    for place, container in _containers(pod, found):
        name = container.get("name")
        if isinstance(name, str) and name not in with_image:
            says = "add it: this container is no container of Ray's in these pods"
            yield Fault((*place, "image"), says, None, "pod_field_missing")
        for key in ("volumeMounts", "volumeDevices"):
            for index, used in enumerate(_list(container, key)):
                volume = _mapping(used).get("name")
                if isinstance(volume, str) and volume not in volumes:
                    says = f"no volume has that name; add it to volumes, which has {_all(volumes)}"
                    yield Fault((*place, key, index, "name"), says, volume)
        for where, port in _named_ports(container):
            if port not in ports.get(name, ()):
                here = _all(ports.get(name, ()))
                says = f"no port of this container has that name; write a number, or one of {here}"
                if port.isdecimal():
                    says = f"write the number {port}, without quotes"
                yield Fault((*place, *where), says, port)


def _port_names(pod: Pod, found: Templates) -> Iterator[Fault]:
    """Names that two ports of a container have after the merge."""
    known: dict[Any, dict[Any, tuple[Any, Location]]] = {
        pod.container: {(port, "TCP"): (name, ()) for name, port in pod.ports.items()}
    }
    for place, container in _containers(pod, found):
        ports = known.setdefault(container.get("name"), {})
        for index, port in enumerate(_items(container, "ports")):
            key, name = (port.get("containerPort"), port.get("protocol") or "TCP"), port.get("name")
            if name is not None or key not in ports:
                ports[key] = name, (*place, "ports", index, "name")
    for ports in known.values():
        named: dict[Any, Any] = {}
        for (number, _), (name, place) in ports.items():
            if name in named and place:
                says = (
                    f"port {named[name]} of this container has that name; give it another one, or "
                    "leave it out"
                )
                yield Fault(place, says, name)
            elif name:
                named[name] = number


def _limits(pod: Pod, found: Templates) -> Iterator[Fault]:
    """Limits below the requests, and of what Kubernetes takes one number for both, other ones."""
    amounts: dict[Any, dict[str, dict[str, Any]]] = {
        pod.container: {"requests": {**pod.resources}, "limits": {**pod.resources}}
    }
    written: dict[tuple[Any, str], Location] = {}
    for place, container in _containers(pod, found):
        name, own = container.get("name"), container.get("resources")
        known = amounts.setdefault(name, {})
        for kind in ("requests", "limits"):
            if "resources" in container and (own is None or _is_null(own, kind)):
                known[kind] = {}
            for resource, quantity in _mapping(_mapping(own).get(kind)).items():
                known.setdefault(kind, {})[resource] = quantity
                written[name, resource] = (*place, "resources", kind, resource)
    for (name, resource), place in written.items():
        request, limit = (
            amounts[name].get(kind, {}).get(resource) for kind in ("requests", "limits")
        )
        least, most = (None if each is None else amount(str(each)) for each in (request, limit))
        if least is None or most is None or least == most:
            continue
        kind = str(place[-2])
        value, other = (limit, request) if kind == "limits" else (request, limit)
        beside = "requests" if kind == "limits" else "limits"
        if _has_one_number(resource):
            says = f"write {other} as in {beside}: of this resource Kubernetes takes one number"
            yield Fault(place, says, value)
        elif least > most:
            bound = "least" if kind == "limits" else "most"
            says = f"write at {bound} {other} as in {beside}, or change {beside} too"
            yield Fault(place, says, value)


def _is_null(value: Any, key: str) -> bool:
    return isinstance(value, Mapping) and key in value and value[key] is None


def _has_one_number(resource: str) -> bool:
    """Whether it is a device or a huge page, of which no more are granted than there are."""
    is_native = "/" not in resource or "kubernetes.io/" in resource
    return not is_native or resource.startswith("hugepages-")


def share(pods: Sequence[tuple[Pod, Templates]], path: str, env: Sequence[Any] = ()) -> bool:
    """Whether Ray's containers of all pods have one volume at a path, which none has by itself.

    Args:
        pods: Head and worker.
        path: Of a folder.
        env: Variables that all of Ray's containers have, before those of their templates.
    """
    found = [_volume_at(pod, templates, path, env) for pod, templates in pods]
    first = found[0]
    return first is not None and all(one == first for one in found)


def covers(pods: Sequence[tuple[Pod, Templates]], path: str) -> bool:
    """Whether Ray's container of a pod has a mount at a path or below it."""
    places = [
        normpath(str(mount.get("mountPath")))
        for pod, templates in pods
        for mount in _mounts(pod, _specs(templates))
    ]
    return any(f"{place}/".startswith(f"{path}/") for place in places)


def _specs(templates: Templates) -> Templates:
    """The templates that have a PodSpec: that, and where its template is."""
    return [(place, spec) for place, one in templates if (spec := _mapping(one.get("spec")))]


def _mounts(pod: Pod, found: Templates) -> Iterator[Mapping[str, Any]]:
    """Those of Ray's container."""
    for _, container in _containers(pod, found):
        if container.get("name") == pod.container:
            yield from _items(container, "volumeMounts")


def _volume_at(
    pod: Pod, templates: Templates, path: str, env: Sequence[Any]
) -> tuple[str, Any] | None:
    """Where the volume is mounted in which a path of Ray's container lies, and its source."""
    found = _specs(templates)
    volumes = {
        volume.get("name"): {key: value for key, value in volume.items() if key != "name"}
        for _, spec in found
        for volume in _items(spec, "volumes")
    }
    mounts = {str(mount.get("mountPath")).rstrip("/"): mount for mount in _mounts(pod, found)}
    inside = [place for place in mounts if place and f"{path}/".startswith(f"{place}/")]
    if not inside:
        return None
    mount = mounts[max(inside, key=len)]
    source = volumes.get(mount.get("name"))
    if not source or mount.get("readOnly") or _OF_ONE_POD & source.keys():
        return None
    folder = mount.get("subPathExpr")
    if isinstance(folder, str) and _differs(folder, pod, found, env):
        return None
    return max(inside, key=len), (source, mount.get("subPath"), folder)


def _differs(text: str, pod: Pod, found: Templates, env: Sequence[Any]) -> bool:
    """Whether a text names a variable of which each pod has another value."""
    variables = [*map(_mapping, env)]
    for _, container in _containers(pod, found):
        if container.get("name") == pod.container:
            variables += _items(container, "env")
    own = dict.fromkeys(_OWN_OF_PODS, "")
    for variable in variables:
        name = str(variable.get("name"))
        field = _mapping(_mapping(variable.get("valueFrom")).get("fieldRef")).get("fieldPath")
        value = variable.get("value")
        by_name = isinstance(value, str) and with_variables(value, own) != with_variables(value, {})
        if by_name or (field is not None and not str(field).startswith(_ALIKE)):
            own[name] = ""
        else:
            own.pop(name, None)
    return with_variables(text, own) != with_variables(text, {})


def _containers(pod: Pod, found: Templates) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    """Those of this pod."""
    for place, spec in found:
        for key in _LISTS:
            for index, item in enumerate(_list(spec, key)):
                container = _mapping(item)
                is_others = len(place) == 1 and container.get("name") == pod.other
                if not is_others:
                    yield (*place, "spec", key, index), container


def _named_ports(container: Mapping[str, Any]) -> Iterator[tuple[Location, str]]:
    lifecycle = _mapping(container.get("lifecycle"))
    handlers: list[tuple[Location, Mapping[str, Any]]] = [
        *(((key,), _mapping(container.get(key))) for key in _PROBES),
        *((("lifecycle", key), _mapping(lifecycle.get(key))) for key in _HOOKS),
    ]
    for place, handler in handlers:
        for action in ("httpGet", "tcpSocket"):
            port = _mapping(handler.get(action)).get("port")
            if isinstance(port, str):
                yield (*place, action, "port"), port


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key)
    return found if isinstance(found, list) else []


def _items(value: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [_mapping(item) for item in _list(value, key)]


def _all(names: Any) -> str:
    found = sorted(name for name in names if isinstance(name, str) and name)
    more = [f"{len(found) - MOST_NAMES} more"] if len(found) > MOST_NAMES else []
    return ", ".join([*found[:MOST_NAMES], *more]) or "none"
