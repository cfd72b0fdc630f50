"""What Kubernetes' own types do not take of a pod template, known without a cluster.

`pod_schema.json` has the types of Kubernetes' OpenAPI; `.ci/pod_schema.py` writes it. KubeRay's CRD
bounds a number less than the Go types by which KubeRay reads it, and one that it cannot read ends
its list of all RayJobs. So nothing reaches a RayJob that has not passed here.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
from importlib import resources
from itertools import islice
from typing import Any, NamedTuple

from pydantic import AfterValidator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from .quantities import FACTORS

TEMPLATE, CONTAINER, SOURCE = "PodTemplateSpec", "Container", "EnvVarSource"
SECURITY_CONTEXT = "PodSecurityContext"
"""Types of Kubernetes' API that are checked."""

MOST_FAULTS = 20
"""That are told of one value."""

MOST_ITEMS = 500
"""In a list: templates are merged item by item, and each with each of the one below."""
MOST_TERMS = 16
"""Of a node selector, and requirements in each: the terms of two templates hold together, so that
their numbers are multiplied."""
MOST_SELECTOR_TEXT = 16_384
"""Characters of a node selector's terms as JSON: each of them is there as often as the other
template has terms."""
_OF_TERMS = ("NodeSelector", "NodeSelectorTerm")

INT32 = (-(2**31), 2**31 - 1)
INT64 = (-(2**63), 2**63 - 1)

QUANTITY = r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,2})?"
"""What `resource.ParseQuantity` takes, with at most two digits in an exponent: Go would take time
and memory for what more of them mean."""
LONGEST_QUANTITY = 64
_MOST = Decimal(2**63 - 1)

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT = (
    rf"{_NAME}([.]{_NAME})*",
    253,
    "write the name of an object: lower-case letters, digits, hyphens and dots",
)
_LABEL = (_NAME, 63, "write lower-case letters, digits and hyphens, at most 63")
_LABEL_VALUE = (
    r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?",
    63,
    "write the value of a label: letters, digits, hyphens, underscores and dots, at most 63",
)
_TEXTS: Mapping[tuple[str, str], tuple[str, int, str]] = {
    ("PersistentVolumeClaimVolumeSource", "claimName"): _OBJECT,
    ("SecretVolumeSource", "secretName"): _OBJECT,
    **{
        (kind, "name"): _OBJECT
        for kind in (
            *("ConfigMapVolumeSource", "ConfigMapProjection", "ConfigMapEnvSource"),
            *("SecretProjection", "SecretEnvSource", "ConfigMapKeySelector", "SecretKeySelector"),
            "LocalObjectReference",
        )
    },
    **{
        ("PodSpec", field): _OBJECT
        for field in ("priorityClassName", "runtimeClassName", "serviceAccountName")
    },
    **{(kind, "name"): _LABEL for kind in ("Container", "EphemeralContainer", "Volume")},
    ("PodSpec", "nodeSelector"): _LABEL_VALUE,
    ("ObjectMeta", "labels"): _LABEL_VALUE,
}
"""Pattern, length and advice, for a text or each text of a mapping. Empty ones count as absent."""

_CHOICES = {
    ("LabelSelectorRequirement", "operator"): ["DoesNotExist", "Exists", "In", "NotIn"],
}
"""Of fields for which the OpenAPI has none."""

_BY_TEMPLATE = {("PodSpec", "containers")}
"""Required fields that a podTemplate need not have, since they are rendered."""

_RFC3339 = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d([.]\d+)?(Z|[+-]\d\d:\d\d)"

Location = tuple[str | int, ...]


class Fault(NamedTuple):
    """One thing that Kubernetes would not take."""

    location: Location
    """The keys and indexes that lead to it, from what was checked."""
    says: str
    """What to write."""
    value: Any = None
    """What was written."""
    kind: str = "pod_field"
    """`pod_field`, or with `_missing` or `_unknown` behind it."""

    def below(self, *location: str | int) -> "Fault":
        """The same, as seen from further up."""
        return self._replace(location=(*location, *self.location))

    def error(self) -> InitErrorDetails:
        """For pydantic's own error."""
        said = PydanticCustomError(self.kind, "{says}", {"says": self.says})
        return InitErrorDetails(type=said, loc=self.location, input=self.value)


def checked(kind: str) -> AfterValidator:
    """For a field: its value is one of this type of Kubernetes' API."""

    def check(value: Any) -> Any:
        if found := faults(value, kind):
            raise ValidationError.from_exception_data(kind, [fault.error() for fault in found])
        return value

    return AfterValidator(check)


@cache
def schema() -> Mapping[str, Mapping[str, Any]]:
    """`types`: what each field of each type holds; `required`: which fields a type cannot miss."""
    text = resources.files(__package__).joinpath("pod_schema.json").read_text("utf-8")
    found: dict[str, dict[str, Any]] = json.loads(text)
    return found


def faults(value: Any, kind: str, bounded: bool = True) -> list[Fault]:
    """What is wrong with a value of a type, at most `MOST_FAULTS` things.

    A null counts as absent, as in a merge it means that there is no such key.

    Args:
        value: Of the type.
        kind: Name of the type.
        bounded: Whether `MOST_ITEMS`, `MOST_TERMS` and `MOST_SELECTOR_TEXT` hold: of what a user
            writes, and not of what several templates have become.
    """
    return list(islice(_of_object(value, kind, bounded), MOST_FAULTS))


def of_collector(options: Any) -> list[Fault]:
    """The same of KubeRay's `collectorOptions`: fields of a container, without its name."""
    if options is None:
        return []
    if not isinstance(options, Mapping):
        return [Fault((), "write a mapping", options)]
    return faults({**options, "name": "collector"}, CONTAINER)


def _of_object(value: Any, kind: str, bounded: bool) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        yield Fault((), "write a mapping", value)
        return
    fields = schema()["types"][kind]
    for key, item in value.items():
        if key not in fields:
            yield Fault((key,), "\n".join(fields), item, "pod_field_unknown")
        elif item is not None:
            holds = _CHOICES.get((kind, key), fields[key])
            fits = True
            # One by one: a list may hold thousands.
            for fault in _of_field(item, holds, kind, bounded):
                fits = False
                yield fault.below(key)
            if fits:
                yield from (f.below(key) for f in _of_text(item, _TEXTS.get((kind, key))))
                if bounded and (kind, key) == ("NodeSelector", "nodeSelectorTerms"):
                    yield from (f.below(key) for f in _of_terms(item))
    for key in schema()["required"].get(kind, ()):
        if value.get(key) is None and (kind, key) not in _BY_TEMPLATE:
            yield Fault((key,), "add it", None, "pod_field_missing")
    if kind in _ACROSS:
        yield from _ACROSS[kind](value)


def _of_field(value: Any, holds: str | Sequence[str], kind: str, bounded: bool) -> Iterator[Fault]:
    """Of a field of an object of type `kind`."""
    if not isinstance(holds, str):
        if not isinstance(value, str) or value not in ("", *holds):
            yield Fault((), f"write {_one_of(holds)}", value)
    elif holds in _PLAIN:
        says = _PLAIN[holds](value)
        if says:
            yield Fault((), f"write {says}", value)
    elif holds.startswith("[]"):
        if not isinstance(value, list):
            yield Fault((), "write a list", value)
            return
        most = MOST_TERMS if kind in _OF_TERMS else MOST_ITEMS
        if bounded and len(value) > most:
            yield Fault((), f"write at most {most} entries, not {len(value)}", value)
            return
        for index, item in enumerate(value):
            found = _of_field(item, holds[2:], kind, bounded)
            yield from (fault.below(index) for fault in found)
    elif holds.startswith("{}"):
        if not isinstance(value, Mapping):
            yield Fault((), "write a mapping", value)
            return
        for key, item in value.items():
            if item is not None:
                found = _of_field(item, holds[2:], kind, bounded)
                yield from (fault.below(key) for fault in found)
    else:
        yield from _of_object(value, holds, bounded)


def _of_text(value: Any, rule: tuple[str, int, str] | None) -> Iterator[Fault]:
    if rule is None:
        return
    pattern, longest, says = rule
    named: list[tuple[Location, Any]] = [((), value)]
    if isinstance(value, Mapping):
        named = [((key,), text) for key, text in value.items()]
    for location, text in named:
        if text and (len(text) > longest or not re.fullmatch(pattern, text)):
            yield Fault(location, says, text)


def selector_text(terms: Any) -> int:
    """Characters of a node selector's terms as JSON."""
    return len(json.dumps(terms, separators=(",", ":"), default=str))


def _of_terms(terms: Any) -> Iterator[Fault]:
    size = selector_text(terms)
    if size > MOST_SELECTOR_TEXT:
        says = f"write at most {MOST_SELECTOR_TEXT} characters of terms, as JSON, not {size}"
        yield Fault((), says, terms)


def _one_of(choices: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(choices[:-1]), *choices[-1:]]))


def _whole(least: int, most: int) -> Callable[[Any], str]:
    says = f"a whole number, {least} to {most}"
    return lambda value: "" if type(value) is int and least <= value <= most else says


def _number_or_name(value: Any) -> str:
    least, most = INT32
    fits = isinstance(value, str) or (type(value) is int and least <= value <= most)
    return "" if fits else f"a whole number, {least} to {most}, or a name"


def _quantity(value: Any) -> str:
    if type(value) is int:
        fits = abs(value) <= _MOST
    else:
        fits = isinstance(value, str) and is_quantity(value)
    return "" if fits else 'a quantity in quotes, such as "500m", "4" or "16Gi"'


def is_quantity(text: str) -> bool:
    """Whether Go's `resource.Quantity` can be read from a text and holds the amount."""
    return amount(text) is not None


def amount(text: str) -> Decimal | None:
    """What a quantity of Go's is in its base unit; None: the text is none, or too large."""
    found = re.fullmatch(QUANTITY, text) if len(text) <= LONGEST_QUANTITY else None
    if found is None:
        return None
    unit = found[3] or ""
    number = Decimal(text[: len(text) - len(unit)])
    # A unit E is one by itself; with digits behind it, it is the beginning of an exponent.
    factor = FACTORS[unit] if unit in FACTORS else Decimal(10) ** int(unit[1:])
    return number * factor if abs(number * factor) <= _MOST else None


_PLAIN: Mapping[str, Callable[[Any], str]] = {
    "string": lambda value: "" if isinstance(value, str) else "a text, in quotes",
    "boolean": lambda value: "" if isinstance(value, bool) else "true or false",
    "int32": _whole(*INT32),
    "int64": _whole(*INT64),
    "quantity": _quantity,
    "int-or-string": _number_or_name,
    "date-time": lambda value: (
        ""
        if isinstance(value, str) and re.fullmatch(_RFC3339, value)
        else "a time, such as 2026-01-31T12:00:00Z"
    ),
    "object": lambda value: "" if isinstance(value, Mapping) else "a mapping",
}
"""What to write where a value does not fit; empty: it does."""


def _toleration(value: Mapping[str, Any]) -> Iterator[Fault]:
    operator = value.get("operator") or "Equal"
    if operator == "Exists" and value.get("value"):
        yield Fault(("value",), "leave it out: operator Exists takes any value", value["value"])
    if operator != "Exists" and not value.get("key"):
        yield Fault(("key",), "add it, or write operator: Exists", None, "pod_field_missing")
    if value.get("tolerationSeconds") is not None and value.get("effect") != "NoExecute":
        says = "write effect: NoExecute beside it, the one effect that it is for, or leave it out"
        yield Fault(("tolerationSeconds",), says, value["tolerationSeconds"])


def _requirement(value: Mapping[str, Any]) -> Iterator[Fault]:
    operator, values = value.get("operator"), value.get("values") or []
    if not isinstance(values, list):
        return
    if operator in ("In", "NotIn") and not values:
        yield Fault(("values",), f"add at least one for {operator}", None, "pod_field_missing")
    if operator in ("Exists", "DoesNotExist") and values:
        yield Fault(("values",), f"leave it out: {operator} takes any value", values)
    if operator in ("Gt", "Lt") and len(values) != 1:
        yield Fault(("values",), f"write one number in quotes for {operator}", values)


def _variable(value: Mapping[str, Any]) -> Iterator[Fault]:
    source = value.get("valueFrom")
    if source is not None and value.get("value"):
        yield Fault(("valueFrom",), "leave it out, or value", source)
    elif isinstance(source, Mapping) and sum(item is not None for item in source.values()) != 1:
        names = _one_of(sorted(schema()["types"][SOURCE]))
        yield Fault(("valueFrom",), f"write one of {names} in it", source)


def _privileges(value: Mapping[str, Any]) -> Iterator[Fault]:
    escalation = value.get("allowPrivilegeEscalation")
    if value.get("privileged") is True and escalation is False:
        says = "leave it out: a container that is privileged has all privileges"
        yield Fault(("allowPrivilegeEscalation",), says, escalation)


def _port(value: Mapping[str, Any]) -> Iterator[Fault]:
    for key, least in (("containerPort", 1), ("hostPort", 0)):
        port = value.get(key)
        if type(port) is int and INT32[0] <= port <= INT32[1] and not least <= port <= 65535:
            yield Fault((key,), f"write the number of a port, {least} to 65535", port)


def _probed_port(value: Mapping[str, Any]) -> Iterator[Fault]:
    port = value.get("port")
    if type(port) is int and INT32[0] <= port <= INT32[1] and not 1 <= port <= 65535:
        yield Fault(("port",), "write the number of a port, 1 to 65535", port)


def _named_once(*lists: str) -> Callable[[Mapping[str, Any]], Iterator[Fault]]:
    def check(value: Mapping[str, Any]) -> Iterator[Fault]:
        for key in lists:
            found = value.get(key)
            seen = set()
            for index, item in enumerate(found if isinstance(found, list) else ()):
                name = item.get("name") if isinstance(item, Mapping) else None
                if isinstance(name, str) and name in seen:
                    says = "the list has it twice: give it another name, or leave it out"
                    yield Fault((key, index, "name"), says, name)
                elif isinstance(name, str):
                    seen.add(name)

    return check


_ACROSS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Fault]]] = {
    "PodSpec": _named_once("containers", "initContainers", "volumes"),
    "Container": _named_once("env"),
    "Toleration": _toleration,
    "NodeSelectorRequirement": _requirement,
    "LabelSelectorRequirement": _requirement,
    "EnvVar": _variable,
    "SecurityContext": _privileges,
    "ContainerPort": _port,
    "HTTPGetAction": _probed_port,
    "TCPSocketAction": _probed_port,
    "GRPCAction": _probed_port,
}
"""What fields of one object need of each other, which Kubernetes checks only in a pod."""
