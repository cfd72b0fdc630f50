"""Jinja2 templates to manifests. Every value goes through `tojson`; nothing is pasted into YAML."""

import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

# libyaml where PyYAML was built with it: rendering is most of the cost of starting many runs.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_PARTS = "parts__"
_PART = "part of the manifest: "

_SURROGATES = re.compile(r"\\\\|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")


def render(template: str, **values: Any) -> dict[str, Any]:
    """The manifest that `templates/<template>.yaml.j2` makes of the values.

    Raises:
        jinja2.UndefinedError: the template wants a value that is not given.
    """
    parts: list[Any] = []
    text = _environment().get_template(f"{template}.yaml.j2").render(**{**values, _PARTS: parts})
    read = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    manifest: dict[str, Any] = _assembled(read, parts)
    return manifest


@pass_context
def _value(context: Context, value: Any) -> str:
    """What stands for a value in the text: a scalar for itself, anything larger for its number.

    Pods are rendered first and then put into the RayJob: read as YAML twice, they would be most of
    the work of starting a run.
    """
    if isinstance(value, (Mapping, list, tuple)) or str(value).startswith(_PART):
        parts: list[Any] = context[_PARTS]
        parts.append(json.loads(json.dumps(value, allow_nan=False)))
        return f'"{_PART}{len(parts) - 1}"'
    return to_json(value)


def _assembled(found: Any, parts: Sequence[Any]) -> Any:
    """What was read, with each part in its place; parts themselves are left as they are."""
    if isinstance(found, dict):
        return {key: _assembled(value, parts) for key, value in found.items()}
    if isinstance(found, list):
        return [_assembled(item, parts) for item in found]
    if isinstance(found, str) and found.startswith(_PART):
        return parts[int(found.removeprefix(_PART))]
    return found


def to_json(value: Any) -> str:
    """JSON that YAML reads as the same value, on one line.

    YAML takes JSON's escapes but for one: it has no surrogate pairs, so that an emoji in a config
    would make the manifest unreadable.
    """
    text = json.dumps(value, allow_nan=False)
    return _SURROGATES.sub(_whole, text)


def _whole(match: re.Match[str]) -> str:
    if match[1] is None:
        return match[0]  # an escaped backslash: what follows it is no escape
    high, low = int(match[1], 16), int(match[2], 16)
    return f"\\U{0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00):08x}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trainingrun.rendering"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - YAML, and `tojson` quotes every value
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tojson"] = _value
    return environment
