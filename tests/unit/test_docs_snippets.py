"""What a reader copies from a document is accepted: command lines, and YAML of a TrainingRun."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer.main
import yaml

from trainingrun.api.parse import parse
from trainingrun.api.v1alpha1 import RunSpec
from trainingrun.cli.main import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    path.name: path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(
    r"^ {4}(?:\$ )?(?:\.venv/bin/|kubectl )?trainingrun (.*(?:\\\n.*)*)", re.MULTILINE
)
FIELDS = {field.alias or name for name, field in RunSpec.model_fields.items()}
REST: dict[str, dict[str, Any]] = {
    "training": {"function": "mytrain:train"},
    "workers": {"count": 8},
    "storage": {"uri": "s3://runs/demo"},
}
"""What a snippet leaves out."""


def command_lines() -> Iterator[tuple[str, str]]:
    for name, text in DOCUMENTS.items():
        indented = FENCED.sub(lambda found: re.sub("^", "    ", found[2], flags=re.M), text)
        for found in COMMAND.finditer(indented):
            # It would write into the reader's shell's own files.
            if "--install-completion" not in found[1]:
                yield name, found[1]


def specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Specs, and parts of them."""
    for name, text in DOCUMENTS.items():
        for found in FENCED.finditer(text):
            if found[1] != "yaml" or found[2].startswith("# values"):  # of the chart
                continue
            for each in yaml.safe_load_all(found[2]):
                if not isinstance(each, dict) or each.get("kind", "TrainingRun") != "TrainingRun":
                    continue
                spec = each.get("spec", each)
                if spec.keys() & FIELDS:
                    yield name, spec


LINES, SPECS = list(command_lines()), list(specs())


def test_they_are_found() -> None:
    assert len(LINES) >= 35
    assert len(SPECS) >= 15


@pytest.mark.parametrize(("document", "line"), LINES)
def test_each_command_line_is_accepted(document: str, line: str) -> None:
    command, rest = typer.main.get_command(app), shlex.split(line, comments=True)
    context = command.make_context("trainingrun", rest)
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, found.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("document", "spec"), SPECS)
def test_each_part_of_a_spec_is_accepted(document: str, spec: dict[str, Any]) -> None:
    whole = {name: {**REST.get(name, {}), **spec.get(name, {})} for name in REST}
    if spec.get("training", {}).keys() & {"script", "torchrun"}:
        del whole["training"]["function"]
    parse(
        {
            "apiVersion": "trainingrun.dev/v1alpha1",
            "kind": "TrainingRun",
            "metadata": {"name": "another"},
            "spec": {**spec, **whole},
        }
    )
