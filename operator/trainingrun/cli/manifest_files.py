"""YAML files as users write them: TrainingRuns, and the other objects in the same files."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..api.parse import InvalidRunError, parse
from ..api.v1alpha1 import KIND, TrainingRun
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
    """A sentence for each error."""

    def only_run(self) -> TrainingRun:
        """The file's one TrainingRun.

        Raises:
            CliError: Something in the file is wrong, or there are several.
        """
        if self.problems:
            raise CliError("\n".join(f"{self.name}: {problem}" for problem in self.problems))
        if len(self.runs) > 1:
            names = ", ".join(run.metadata.name for run in self.runs)
            raise CliError(f"{self.name}: holds several TrainingRuns ({names}); give each its file")
        return self.runs[0]


def read(path: Path) -> Documents:
    """Read a file; `-` is the standard input. What is wrong with it is in `problems`."""
    found = Documents(str(path))
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except OSError as error:
        found.problems.append(f"cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        found.problems.append("is not UTF-8 text")
    except yaml.YAMLError as error:
        found.problems.append(f"is not YAML: {_yaml_problem(error)}")
    else:
        for document in documents:
            _add(document, found)
        if not found.runs and not found.problems:
            found.problems.append(f"holds no {KIND}; one document needs kind: {KIND}")
    return found


def _add(document: Any, found: Documents) -> None:
    kind = document.get("kind") if isinstance(document, Mapping) else None
    if kind == "ConfigMap":
        name, data = document.get("metadata", {}).get("name"), document.get("data") or {}
        found.config_maps[str(name)] = {str(key): str(value) for key, value in data.items()}
    # Another kind with an apiVersion is another object of the cluster, which is not checked.
    elif kind in (None, KIND) or "apiVersion" not in document:
        try:
            found.runs.append(parse(document))
            found.manifests.append(dict(document))
        except InvalidRunError as error:
            found.problems.extend(error.problems)


def _yaml_problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return " ".join(str(error).split())
