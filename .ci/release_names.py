#!/usr/bin/env python3
"""Write what depends on a release's names: `release_names.py [--check]`.

The names of .ci/release.env and the version of pyproject.toml take the place of the former ones in
the chart, the README, the samples, the Dockerfiles and the operator's default; and the chart's
README gets its table of values, from the comments of values.yaml. With --check nothing is written,
and a file that differs ends it with code 1.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts" / "trainingrun-operator"
FILES = (
    CHART / "Chart.yaml",
    CHART / "values.yaml",
    CHART / "README.md",
    ROOT / "README.md",
    ROOT / "manifests" / "batch-inference.yaml",
    ROOT / "operator" / "Dockerfile",
    ROOT / "training_images" / "Dockerfile",
    ROOT / "operator" / "trainingrun" / "rendering" / "platforms" / "__init__.py",
    *sorted((ROOT / "manifests" / "samples").glob("*.yaml")),
)
TABLE = re.compile(r"(?<=<!-- values -->\n).*?(?=<!-- end of values -->)", re.DOTALL)
AFTER_A_NAME = {"REGISTRY": "/trainingrun-|/charts/|$", "SOURCE": r"[/\]\s\"]|$"}
BEFORE_A_VERSION = (
    r"trainingrun(?:-[a-z]+)?(?::|-| --version )|/(?:blob|raw|download)/v|"
    r"^(?:version|appVersion): |^ARG VERSION="
)


def names() -> dict[str, str]:
    """REGISTRY and SOURCE of .ci/release.env, and VERSION of pyproject.toml."""
    lines = (ROOT / ".ci" / "release.env").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {**found, "VERSION": project["version"]}


def former() -> dict[str, str]:
    """The same names, as the chart has them until now."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    return {
        "REGISTRY": values["registry"],
        "SOURCE": chart["home"],
        "VERSION": str(chart["appVersion"]),
    }


def renamed(text: str, old: dict[str, str], new: dict[str, str]) -> str:
    """A file's text with the new names in the place of the former ones."""
    for key, followed_by in AFTER_A_NAME.items():
        name = rf"(?<![\w.-]){re.escape(old[key])}(?={followed_by})"
        text = re.sub(name, lambda _, key=key: new[key], text, flags=re.MULTILINE)
    version = rf"({BEFORE_A_VERSION}){re.escape(old['VERSION'])}(?![\d.]*\d)"
    return re.sub(version, lambda match: match[1] + new["VERSION"], text, flags=re.MULTILINE)


def described() -> Iterator[tuple[str, Any, str]]:
    """Path, default and meaning of each value that has a comment with `# --`, in their order."""
    path: list[str] = []
    comment = ""
    text = (CHART / "values.yaml").read_text()
    values = yaml.safe_load(text)
    for line in text.splitlines():
        if match := re.match(r"( *)# (-- )?(.*)", line):
            comment = match[3] if match[2] else f"{comment} {match[3]}" if comment else ""
        elif match := re.match(r"( *)(\w+):", line):
            path = [*path[: len(match[1]) // 2], match[2]]
            if comment:
                default = values
                for key in path:
                    default = default[key]
                yield ".".join(path), default, comment
            comment = ""
        elif not line:
            comment = ""


def table() -> str:
    """The values of the chart, in Markdown."""
    lines = ["| value | default | meaning |", "| --- | --- | --- |"]
    for path, default, meaning in described():
        cell = meaning.replace("|", "\\|")
        lines.append(f"| `{path}` | `{json.dumps(default)}` | {cell} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the files, or compare them."""
    check, old, new = "--check" in sys.argv[1:], former(), names()
    for path in FILES:
        before = path.read_text()
        text = renamed(before, old, new)
        if path.name == "README.md" and path.parent == CHART:
            text = TABLE.sub(lambda _: table(), text)
        if check and text != before:
            sys.exit(f"{path.relative_to(ROOT)} is out of date; run `make generate`")
        if not check:
            path.write_text(text)


if __name__ == "__main__":
    main()
