"""What the documents quote is what the code says."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOCOL = ROOT / "operator" / "trainingrun_protocol"
SOURCES = (ROOT / "operator" / "trainingrun", ROOT / "training_images" / "trainingrun_runtime")

TROUBLESHOOTING = re.sub(  # what a block of code says is the reader's
    r"^```.*?^```", "", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.M | re.S
)
QUOTES = re.findall(r'(?<!`)"([^"`]+)"(?!`)', TROUBLESHOOTING)
REASONS = re.findall(r"^\| ((?:`[A-Z][A-Za-z]+`(?:, )?)+) \|", TROUBLESHOOTING, re.MULTILINE)

DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
]
DESIGN = (ROOT / "docs" / "design.md").read_text()
LONGEST_SENTENCE = 30  # words


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


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
WORDS = {
    word
    for folder in (PROTOCOL, *SOURCES)
    for path in folder.rglob("*.py")
    for word in re.findall(r"\w+", path.read_text())
}


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


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_file_that_a_document_names_is_there(document: str) -> None:
    text = (ROOT / document).read_text()
    named = re.findall(
        r"`((?:operator/trainingrun(?:_protocol)?|training_images|tests|charts)/[\w./-]+)`", text
    )
    linked = re.findall(r"\]\(([^)#:]+)[^):]*\)", text)
    folder = (ROOT / document).parent
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing + [path for path in linked if not (folder / path).exists()] == []


def test_each_file_that_a_cell_names_after_its_folder_is_there() -> None:
    missing = []
    for cell in re.findall(r"(?<=\|)[^|\n]+", (ROOT / "CONTRIBUTING.md").read_text()):
        folder = ROOT
        for name in re.findall(r"`([\w./-]+)`", cell):
            if "/" in name:
                folder = ROOT / name.rpartition("/")[0]
            elif name.endswith(".py") and not (folder / name).exists():
                missing.append(f"{folder.relative_to(ROOT)}/{name}")
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_section_that_a_document_links_to_is_there(document: str) -> None:
    here = ROOT / document
    linked = re.findall(r"\]\(([\w./-]*)#([^)]+)\)", here.read_text())
    missing = [
        f"{path}#{anchor}"
        for path, anchor in linked
        if anchor not in anchors((here.parent / path if path else here).read_text())
    ]
    assert missing == []


def test_each_package_has_a_section_in_the_design() -> None:
    packages = {path.parent.name for root in SOURCES for path in root.glob("*/__init__.py")}
    headings = re.findall(r"^#{2,3} (.*)", DESIGN, re.MULTILINE)
    sections = {name for heading in headings for name in re.findall(r"`(\w+)`", heading)}
    assert {root.name for root in (PROTOCOL, *SOURCES)} | packages <= sections


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`([A-Z]\w*(?:\.\w+)*)`", DESIGN))))
def test_each_name_in_the_design_is_one_of_the_sources(name: str) -> None:
    assert set(name.split(".")) <= WORDS


def test_no_sentence_of_the_design_is_long() -> None:
    # Tables, code and diagrams are left out; each item of a list begins a sentence.
    text = re.sub(r"^(```.*?^```|#.*?$|\|.*?$)", "", DESIGN, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text))
    paragraphs = re.split(r"\n\s*\n|\n(?=(?:-|\d+\.) )", text)
    sentences = [one for each in paragraphs for one in re.split(r"(?<=[.?!])\s+", each)]
    long = [one for one in sentences if len(re.findall(r"\w\S*", one)) > LONGEST_SENTENCE]
    assert long == []
