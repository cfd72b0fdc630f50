"""The page of versions says what was run, and no bound promises a version that it does not name."""

import re
import tomllib
from pathlib import Path

import pytest

from support import compatibility
from support.benchmark_page import merged

ROOT = Path(__file__).parents[2]
PAGE = compatibility.PAGE.read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TABLES = {
    name: {row[0]: row for row in re.findall(r"^\| ([^|]+) \| ([^|]+) \| (.*) \|$", rows, re.M)}
    for name, rows in re.findall(r"<!-- table: (.+?) -->\n.*\n.*\n((?:\|.*\n)+)", PAGE)
}


def test_every_row_says_whether_it_was_tried_and_then_when() -> None:
    assert set(TABLES) == {"Kubernetes", "KubeRay", "Kueue", "Ray", "PyTorch", "Python"}
    for table in TABLES.values():
        for version, status, rest in table.values():
            assert status in {"tried", "failed", "rendered only", "resolves only", "not tried"}
            dated = re.search(r"`make [^`]+` \| \d{4}-\d\d-\d\d, [0-9a-f]{7,}", rest)
            assert bool(dated) == (status != "not tried"), version


def lowest(extra: str, package: str) -> str:
    (found,) = (one for one in PROJECT["optional-dependencies"][extra] if one.startswith(package))
    return re.findall(r">=([\d.]+)", found)[0]


def test_the_lowest_version_that_each_bound_allows_is_in_the_page() -> None:
    readme = (ROOT / "README.md").read_text()
    bounds = {
        "Kubernetes": re.findall(r"Kubernetes (1\.\d+) or newer", readme),
        "KubeRay": re.findall(r"KubeRay\s+(1\.\d+) or newer", readme),
        "Ray": [lowest("runtime", "ray[")],
        "PyTorch": [lowest("runtime", "torch")],
        "Python": re.findall(r">=([\d.]+)", PROJECT["requires-python"]),
    }
    for name, (bound,) in bounds.items():
        first = next(iter(TABLES[name]))
        assert first == bound or first.startswith(f"{bound}."), name


def test_the_readme_says_no_more_of_what_was_run_than_the_page() -> None:
    said = re.findall(
        r"(\w+)\s+1\.\d+ or newer \(run on ([^;)]+)", (ROOT / "README.md").read_text()
    )
    assert [name for name, _ in said] == ["Kubernetes", "KubeRay"]
    for name, versions in said:
        for version in re.findall(r"1\.\d+", versions):
            rows = [row for row in TABLES[name].values() if row[0].startswith(f"{version}.")]
            assert {row[1] for row in rows} == {"tried"}, (name, version)


def test_no_python_above_those_of_the_page_is_allowed() -> None:
    highest = max(int(version.partition(".")[2]) for version in TABLES["Python"])
    assert PROJECT["requires-python"].endswith(f",<3.{highest + 1}")


@pytest.mark.parametrize(
    ("body", "passed"),
    [
        ("def test_a(): pass\ndef test_b(): pass", 2),
        ("def test_a(): pass\ndef test_b(): assert False", 0),
        ("import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no Go')", 0),
        ("", 0),
    ],
    ids=["passes", "fails", "skips", "has no test"],
)
def test_a_file_counts_only_if_each_of_its_tests_has_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, passed: int
) -> None:
    (tmp_path / "test_it.py").write_text(body)
    monkeypatch.setattr(compatibility, "ROOT", tmp_path)  # pytest names files from there
    (tmp_path / "pytest.ini").touch()
    assert compatibility.tests_passed(["test_it.py"]) == {"test_it.py": passed}


def test_a_version_that_is_tried_again_keeps_its_place() -> None:
    row = ("1.30.14", "tried", "1 test", "`make`", "today")
    new = merged(PAGE, "Kubernetes", [row])
    assert [line for line in new.splitlines() if line.startswith("| 1.")] == [
        "| 1.30.14 | tried | 1 test | `make` | today |" if line.startswith("| 1.30.14 ") else line
        for line in PAGE.splitlines()
        if line.startswith("| 1.")
    ]
