"""Jinja2 templates to manifests. No value becomes text: what a template has as `{{ … | tojson }}`
is put into the parsed manifest.
"""

import json
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

# A character that no template has, and YAML takes as it is.
_PLACE = "\ue000"


def render(template: str, **values: Any) -> dict[str, Any]:
    """The manifest that `templates/<template>.yaml.j2` makes of the values, which JSON can hold.

    Raises:
        jinja2.UndefinedError: the template has a value that is not given.
        ValueError: a number is not finite.
    """
    placed: list[Any] = []
    text = _environment().get_template(f"{template}.yaml.j2").render(values, placed=placed)
    manifest: dict[str, Any] = _filled(_parsed(text), placed)
    return manifest


@lru_cache(maxsize=64)
def _parsed(text: str) -> Any:
    """Parsing takes most of the time. Texts of two runs differ only where the templates branch."""
    return yaml.safe_load(text)


def _filled(part: Any, placed: Sequence[Any]) -> Any:
    if isinstance(part, dict):
        return {_filled(key, placed): _filled(value, placed) for key, value in part.items()}
    if isinstance(part, list):
        return [_filled(item, placed) for item in part]
    if isinstance(part, str) and part.startswith(_PLACE):
        return placed[int(part[1:])]
    return part


@pass_context
def _place(context: Context, value: Any) -> str:
    placed: list[Any] = context["placed"]
    plain = type(value) in (str, int, bool)  # most are; the rest becomes what JSON makes of it
    placed.append(value if plain else json.loads(json.dumps(value, allow_nan=False)))
    return f'"{_PLACE}{len(placed) - 1}"'


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("trainingrun.rendering"),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - YAML, in which no value stands
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["tojson"] = _place
    return environment
