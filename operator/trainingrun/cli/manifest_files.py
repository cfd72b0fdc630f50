"""YAML files as users write them: TrainingRuns, and the other objects in the same files."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..api.parse import InvalidRunError, parse
from ..api.v1alpha1 import KIND, TrainingRun
from . import yaml_text
from .errors import CliError


@dataclass
class Documents:
    """What is in one file."""

    name: str
    """The file's name, as it was given."""
    runs: list[TrainingRun] = field(default_factory=list)
    """The valid TrainingRuns."""
    manifests: list[dict[str, Any]] = field(default_factory=list)
    """The same as they were written."""
    config_maps: dict[str, dict[str, str]] = field(default_factory=dict)
    """Data of the ConfigMaps, by name."""
    problems: list[str] = field(default_factory=list)
    """A sentence for each error, after the file's name and line."""

    def only_run(self) -> TrainingRun:
        """The file's one TrainingRun.

        Raises:
            CliError: Something in the file is wrong, or there are several.
        """
        if self.problems:
            raise CliError("\n".join(self.problems))
        if len(self.runs) > 1:
            names = ", ".join(run.metadata.name for run in self.runs)
            raise CliError(f"{self.name}: holds several TrainingRuns ({names}); give each its file")
        return self.runs[0]

    def add_problem(self, sentence: str, line: int | None = None) -> None:
        """Add what is wrong in a line, or in the file as a whole."""
        self.problems.append(f"{self.name}:{'' if line is None else f'{line}:'} {sentence}")


def read(path: Path) -> Documents:
    """Read a file; `-` is the standard input. What is wrong with it is in `problems`."""
    found = Documents(str(path))
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = list(yaml_text.documents(text))
    except OSError as error:
        found.add_problem(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        found.add_problem("is not UTF-8 text")
    except yaml_text.NotYamlError as error:
        found.add_problem(str(error), error.line)
    else:
        for document in documents:
            _add(document, found)
        if not found.runs and not found.problems:
            found.add_problem(f"holds no {KIND}; one document needs kind: {KIND}")
    return found


def _add(document: yaml_text.Document, found: Documents) -> None:
    manifest = document.value
    kind = manifest.get("kind") if isinstance(manifest, Mapping) else None
    if kind == "ConfigMap":
        name, data = manifest.get("metadata", {}).get("name"), manifest.get("data") or {}
        found.config_maps[str(name)] = {str(key): str(value) for key, value in data.items()}
    # Another kind with an apiVersion is another object of the cluster, which is not checked.
    elif kind in (None, KIND) or "apiVersion" not in manifest:
        try:
            found.runs.append(parse(manifest))
            found.manifests.append(dict(manifest))
        except InvalidRunError as error:
            for problem in error.problems:
                found.add_problem(problem.sentence, document.line(problem.location))
