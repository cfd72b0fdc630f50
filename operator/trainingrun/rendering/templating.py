"""Jinja2 templates to manifests. Every value goes through `tojson`; nothing is pasted into YAML."""

import json
from functools import cache
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

# libyaml where PyYAML was built with it: rendering is most of the cost of starting many runs.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def render(template: str, **values: Any) -> dict[str, Any]:
    """The manifest that `templates/<template>.yaml.j2` makes of the values.

    Raises:
        jinja2.UndefinedError: the template has a value that is not given.
    """
    text = _environment().get_template(f"{template}.yaml.j2").render(values)
    manifest: dict[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe loader
    return manifest


def to_json(value: Any) -> str:
    """JSON on one line, with the escapes that YAML has too.

    JSON escapes an emoji as a surrogate pair, which YAML does not have; Python's escape is YAML's.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", r"\x7f")
    return text.encode("ascii", "backslashreplace").decode("ascii")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trainingrun.rendering"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - YAML, and `tojson` quotes every value
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_function"] = to_json
    environment.policies["json.dumps_kwargs"] = {}  # Jinja2 would sort the keys
    return environment
