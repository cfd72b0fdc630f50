"""Writes what is made from the models: `python -m trainingrun.api.generate [--check]`.

The files are the chart's CRDs, docs/api.md and docs/conditions.md, below the current folder. With
--check nothing is written, and a file that differs ends it with code 1.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from .crd import PRINTER_COLUMNS, Schema, crd, defaults_crds
from .defaults import CLUSTER_DEFAULTS_KIND, DEFAULTS_KIND, DEFAULTS_NAME, FIELDS
from .quantities import MAX_LENGTH
from .reasons import CONDITIONS, EVENTS, PHASES
from .status import ConditionType
from .v1alpha1 import API_VERSION, IMMUTABLE, KIND

_NOTE = "# Generated from operator/trainingrun/api by `make generate`; do not edit.\n"


def generated() -> Mapping[Path, str]:
    """Every generated file, by its path in the repository."""
    # The chart puts its own labels there. `doctor` tells by this one whether CRD and operator fit.
    labels = {"labels": {"app.kubernetes.io/version": metadata.version("trainingrun")}}
    crds = dict[Path, str]()
    for plain in (crd(), *defaults_crds()):
        labeled = {**plain, "metadata": {**plain["metadata"], **labels}}
        file = f"charts/trainingrun-operator/files/crds/{plain['spec']['names']['plural']}.yaml"
        text = yaml.safe_dump(labeled, sort_keys=False, width=100, allow_unicode=True)
        crds[Path(file)] = _NOTE + text
    return {
        **crds,
        Path("docs/api.md"): _reference(),
        Path("docs/conditions.md"): "\n".join(_conditions()) + "\n",
    }


_HEAD = f"""# {KIND} ({API_VERSION})

Generated from the models in `operator/trainingrun/api/` by `make generate`; do not edit.

After creation {", ".join(f"`{field}`" for field in IMMUTABLE)} cannot change: delete the
{KIND} and create a new one. Every other field of the spec can be changed at any time.

`kubectl get tr` prints {", ".join(column[0] for column in PRINTER_COLUMNS)}.
"""


def _reference() -> str:
    """docs/api.md: every field of a TrainingRun, from the same models as the CRD."""
    root = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    lines = [_HEAD, "## metadata", ""]
    lines += [f"- `{_field_of(rule, 'metadata')}`: {rule['message']}." for rule in _rules(root)]
    for name in ("spec", "status"):
        for path, node in _objects(name, root["properties"][name]):
            lines += ["", *_section(path, node)]
    lines += ["", *_defaults_reference()]
    return "\n".join(lines).rstrip() + "\n"


def _defaults_reference() -> Iterator[str]:
    """Of the kinds of which runs have defaults: all but `maximum` is as in a run."""
    (spec, *_) = (
        each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        for each in defaults_crds()
    )
    yield f"# {DEFAULTS_KIND} and {CLUSTER_DEFAULTS_KIND} ({API_VERSION})"
    yield ""
    yield (
        f"An object of either kind is named `{DEFAULTS_NAME}`. Its spec has these fields of a run, "
        "none of them required, and `maximum`; see [defaults.md](defaults.md):"
    )
    yield ""
    for name, below in FIELDS.items():
        yield f"- `{name}`" + (f": {', '.join(f'`{field}`' for field in below)}" if below else "")
    yield ""
    yield from _section("spec.maximum", spec["properties"]["maximum"])


def _objects(path: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    """Every object with fields of its own, parents before children."""
    yield path, node
    for name, child in node["properties"].items():
        inner, suffix = (child["items"], "[]") if "items" in child else (child, "")
        if "properties" in inner and "x-kubernetes-preserve-unknown-fields" not in inner:
            yield from _objects(f"{path}.{name}{suffix}", inner)


def _section(path: str, node: Schema) -> Iterator[str]:
    yield f"## {path}"
    yield ""
    yield node.get("description", "")
    yield ""
    required = node.get("required", ())
    if path.startswith("spec"):
        yield "| field | type | default | meaning |"
        yield "| --- | --- | --- | --- |"
        for name, child in node["properties"].items():
            default = "required" if name in required else _default(child)
            yield f"| `{name}` | {_type(child)} | {default} | {_cell(child)} |"
    else:
        yield "| field | type | meaning |"
        yield "| --- | --- | --- |"
        for name, child in node["properties"].items():
            yield f"| `{name}` | {_type(child)} | {_cell(child)} |"
    rules = [rule for rule in _rules(node) if "oldSelf" not in rule["rule"]]
    if rules:
        yield ""
        for rule in rules:
            where = _field_of(rule, "")
            yield (
                f"- `{where}`: {rule['message']}." if where else f"- {_sentence(rule['message'])}."
            )


def _rules(node: Schema) -> list[Schema]:
    found: list[Schema] = node.get("x-kubernetes-validations", [])
    return found


def _field_of(rule: Schema, root: str) -> str:
    return str(rule.get("fieldPath", root)).removeprefix(".")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _default(node: Schema) -> str:
    if "properties" in node and "default" in node:
        return "its fields' defaults"
    return f"`{json.dumps(node['default'])}`" if "default" in node else ""


def _type(node: Schema) -> str:
    if "enum" in node:
        return " \\| ".join(f"`{option}`" for option in node["enum"])
    if "x-kubernetes-int-or-string" in node:
        return "quantity" if node.get("maxLength") == MAX_LENGTH else "integer or string"
    if "items" in node:
        inner = node["items"].get("type", "object")
        return f"list of {inner}s" + (f", at most {node['maxItems']}" if "maxItems" in node else "")
    name = "JSON object" if "x-kubernetes-preserve-unknown-fields" in node else node["type"]
    least, most = node.get("minimum"), node.get("maximum")
    if least is not None and most is not None:
        return f"{name}, {least:,} to {most:,}"
    if "maxLength" in node:
        return f"{name}, at most {node['maxLength']:,} characters"
    return str(name)


def _cell(node: dict[str, Any]) -> str:
    return str(node.get("description", "")).replace("|", "\\|")


def _conditions() -> Iterator[str]:
    """The lines of docs/conditions.md."""
    yield "# Conditions and events"
    yield ""
    yield (
        "Generated from `operator/trainingrun/api/reasons.py` by `make generate`; do not edit. "
        "`kubectl describe trainingrun NAME` prints both; the message names the object."
    )
    yield ""
    yield "## Phases"
    yield ""
    yield "| phase | meaning |"
    yield "| --- | --- |"
    for phase, meaning in PHASES.items():
        yield f"| `{phase.value}` | {meaning} |"
    for type_ in ConditionType:
        yield ""
        yield f"## {type_.value}"
        yield ""
        yield "| status | reason | meaning | what to do |"
        yield "| --- | --- | --- | --- |"
        for row in CONDITIONS:
            if row.type is type_:
                cells = (row.status, f"`{row.reason.value}`", row.meaning, row.remedy or "-")
                yield f"| {' | '.join(cells)} |"
    yield ""
    yield "## Events"
    yield ""
    yield "| type | reason | meaning |"
    yield "| --- | --- | --- |"
    for event in EVENTS:
        yield f"| {event.type} | `{event.reason.value}` | {event.meaning} |"


def main(arguments: list[str]) -> int:
    """Writes, or checks, the files; the exit code."""
    files = generated()
    stale = [
        path
        for path, text in files.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is not what the models say; run: make generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
