"""What the documents quote is what the code says."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "operator" / "trainingrun", ROOT / "training_images" / "trainingrun_runtime")

TROUBLESHOOTING = re.sub(  # what a block of code says is the reader's
    r"^```.*?^```", "", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.M | re.S
)
QUOTES = re.findall(r'(?<!`)"([^"`]+)"(?!`)', TROUBLESHOOTING)
REASONS = re.findall(r"^\| ((?:`[A-Z][A-Za-z]+`(?:, )?)+) \|", TROUBLESHOOTING, re.MULTILINE)


def texts() -> set[str]:
    """Every string in the sources; a name or number that is put into one is written as `…`."""
    found = set()
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                    found.add("".join(str(part) for part in parts))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.add(node.value)
    return found


TEXTS = texts()


@pytest.mark.parametrize("quote", QUOTES)
def test_each_quoted_message_is_one_that_the_code_writes(quote: str) -> None:
    assert any(quote in text for text in TEXTS)


@pytest.mark.parametrize(
    "reason", [reason for row in REASONS for reason in re.findall(r"`(\w+)`", row)]
)
def test_each_reason_is_one_that_the_code_writes(reason: str) -> None:
    # Some are made of a kind and a word, as SecretMissing is.
    assert reason in TEXTS or re.sub(r"^(Secret|ConfigMap)", "…", reason) in TEXTS


def test_the_changelog_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_chart_asks_for_the_kubernetes_version_that_the_readme_names() -> None:
    chart = (ROOT / "charts" / "trainingrun-operator" / "Chart.yaml").read_text()
    named = re.findall(r"Kubernetes (1\.\d+)", (ROOT / "README.md").read_text())
    assert named == re.findall(r'kubeVersion: ">=(1\.\d+)', chart)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "docs/design.md"])
def test_each_file_that_a_document_names_is_there(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(
        r"`((?:operator/trainingrun(?:_protocol)?|training_images|tests|charts)/[\w./-]+)`", text
    )
    linked = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
    folder = (ROOT / document).parent
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing + [path for path in linked if not (folder / path).exists()] == []
