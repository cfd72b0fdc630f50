"""YAML files as users write them: TrainingRuns, and the other objects in the same files."""

import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..api.defaults import AppliedDefaults
from ..api.errors import RunError
from ..api.parse import InvalidRunError, parse
from ..api.v1alpha1 import KIND, TrainingRun
from ..rendering import defaults
from . import yaml_text
from .defaults import Lookup, no_defaults

_SUFFIX_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Of which Kubernetes makes the end of a generated name."""
_LISTS = ("List", f"{KIND}List")


@dataclass
class Documents:
    """What is in one file."""

    name: str
    """The file's name, as it was given."""
    runs: list[TrainingRun] = field(default_factory=list)
    """The valid TrainingRuns, with their defaults."""
    defaults: list[AppliedDefaults | None] = field(default_factory=list)
    """Where those of each TrainingRun are from; None: it has none."""
    manifests: list[dict[str, Any]] = field(default_factory=list)
    """The same as they were written, with their change; one with generateName has a name."""
    config_maps: dict[str, dict[str, str]] = field(default_factory=dict)
    """Data of the ConfigMaps, by name."""
    config_map_manifests: list[dict[str, Any]] = field(default_factory=list)
    """The ConfigMaps as they were written."""
    others: list[str] = field(default_factory=list)
    """Kind and name of each other object."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each error, after the file's name and line."""
    lines: dict[tuple[str, str], int] = field(default_factory=dict)
    """The line of each valid TrainingRun, by namespace and name."""

    def only_run(self) -> TrainingRun:
        """The file's one TrainingRun.

        Raises:
            RunError: Something in the file is wrong, or there are several.
        """
        if self.problems:
            raise RunError("\n".join(self.problems))
        if len(self.runs) > 1:
            names = ", ".join(run.metadata.name for run in self.runs)
            raise RunError(f"{self.name}: holds several TrainingRuns ({names}); give each its file")
        return self.runs[0]

    def add_problem(self, sentence: str, line: int | None = None) -> None:
        """Add what is wrong in a line, or in the file as a whole."""
        self.problems.append(f"{self.name}:{'' if line is None else f'{line}:'} {sentence}")


Change = Callable[[Any], Any]
"""Makes the manifest that is judged of a TrainingRun as it was written."""


def read(
    path: Path, lookup: Lookup = no_defaults, change: Change = lambda manifest: manifest
) -> Documents:
    """Read a file; `-` is the standard input. What is wrong with it is in `problems`.

    Args:
        path: Of the file.
        lookup: Finds the defaults of each TrainingRun.
        change: Of each TrainingRun, before it is judged.

    Raises:
        RunError: The cluster does not say which defaults there are.
    """
    # Python has the bytes of a name that are not UTF-8 as characters that cannot be printed.
    found = Documents(os.fsencode(path).decode(errors="backslashreplace"))
    try:
        content = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        documents = list(yaml_text.documents(content.decode("utf-8-sig")))
    except OSError as error:
        found.add_problem(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        found.add_problem("is not UTF-8 text")
    except yaml_text.NotYamlError as error:
        found.add_problem(str(error), error.line)
    else:
        for document in documents:
            for item in _items(document):
                _add(item, found, lookup, change)
        if not found.runs and not found.problems:
            only = [*(f"ConfigMap {name}" for name in found.config_maps), *found.others]
            beside = f", only {', '.join(only)}" if only else ""
            found.add_problem(f"holds no {KIND}{beside}; one document needs kind: {KIND}")
    return found


def _items(document: yaml_text.Document) -> list[yaml_text.Document]:
    """The objects of a List, as `kubectl get -o yaml` prints several; else the document itself."""
    value = document.value
    items = value.get("items") if isinstance(value, Mapping) else None
    if isinstance(items, list) and value.get("kind") in _LISTS:
        return [document.below("items", index) for index in range(len(items))]
    return [document]


def _add(document: yaml_text.Document, found: Documents, lookup: Lookup, change: Change) -> None:
    manifest = document.value
    kind = manifest.get("kind") if isinstance(manifest, Mapping) else None
    if kind == "ConfigMap":
        _add_config_map(document, found)
    elif kind is None or "apiVersion" not in manifest or str(kind).lower() == KIND.lower():
        _add_run(document, found, lookup, change)
    else:  # another object of the cluster, which is not checked
        metadata = manifest.get("metadata")
        name = metadata.get("name", "") if isinstance(metadata, Mapping) else ""
        found.others.append(f"{kind} {name}".strip())


def _add_config_map(document: yaml_text.Document, found: Documents) -> None:
    manifest = document.value
    metadata, data = manifest.get("metadata"), manifest.get("data")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str) or not name:
        line = document.line(("metadata", "name"))
        found.add_problem("metadata.name of the ConfigMap is missing; add it", line)
        return
    if not isinstance(data, Mapping | None):
        found.add_problem(
            f"data of ConfigMap {name} is {'a list' if isinstance(data, list) else 'a text'}; "
            "write a mapping of file names to texts, such as {train.py: ...}",
            document.line(("data",)),
        )
        return
    texts = {}
    for key, text in (data or {}).items():
        if not isinstance(text, str):
            found.add_problem(
                f"data.{key} of ConfigMap {name} is no text; put it in quotes",
                document.line(("data", key)),
            )
        else:
            texts[key] = text
    found.config_maps[name] = texts
    found.config_map_manifests.append(dict(manifest))


def _add_run(
    document: yaml_text.Document, found: Documents, lookup: Lookup, change: Change
) -> None:
    manifest = change(named(document.value))
    applied = None
    if isinstance(manifest, Mapping):
        applied = defaults.applied(manifest, lookup(manifest))
        found.defaults.append(applied)
    try:
        run = parse(defaults.resolved(manifest, applied) if applied else manifest)
    except InvalidRunError as error:
        for problem in error.problems:
            sentence = problem.sentence + defaults.origin(manifest, applied, problem.location)
            found.add_problem(sentence, document.line(problem.location))
        return
    for sentence in defaults.exceeded(run.spec, applied):
        found.add_problem(sentence, document.line(("spec",)))
    key = (run.metadata.namespace, run.metadata.name)
    if key in found.lines:
        found.add_problem(
            f"{KIND} {run.metadata.name} is in the file twice, also in line {found.lines[key]}; "
            "leave one of them out, or give it another name",
            document.line(("metadata", "name")),
        )
    found.lines.setdefault(key, document.line(("metadata", "name")))
    found.runs.append(run)
    found.manifests.append(manifest)


def named(manifest: Any) -> Any:
    """A manifest with a name where it has generateName alone, as the API server would name it."""
    metadata = manifest.get("metadata") if isinstance(manifest, Mapping) else None
    if not isinstance(metadata, Mapping) or "name" in metadata:
        return manifest
    prefix = metadata.get("generateName")
    if not isinstance(prefix, str):
        return manifest
    suffix = "".join(random.choices(_SUFFIX_CHARACTERS, k=5))  # noqa: S311 - no secret
    rest = {name: value for name, value in metadata.items() if name != "generateName"}
    return {**manifest, "metadata": {**rest, "name": prefix + suffix}}
