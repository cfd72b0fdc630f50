"""Tries a version and writes its row into docs/compatibility.md.

    python -m support.compatibility TABLE VERSION COMMAND PATH...
    python -m support.compatibility pythons COMMAND VERSION...

The first runs the files of tests below the paths; which version they use is in the environment. A
file counts only if each of its tests has run and passed. It then counts for later calls on the same
commit and version, too, so that the folder can be tried in parts.

The second only asks a registry whether the locks' packages have wheels for each Python.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from xml.etree import ElementTree

from support import benchmark_page
from support.benchmark_page import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
KEPT = ROOT / "tests" / ".artifacts" / "tried.json"
LOCKS = ("requirements.lock", "training_images/frameworks/*.lock")
NOT_PASSED = ("skipped", "failure", "error")
PLATFORM = "x86_64-manylinux_2_28"


def main(arguments: list[str]) -> int:
    """The exit status: 1 if a test failed."""
    if arguments[0] == "pythons":
        return try_pythons(arguments[1], arguments[2:])
    table, version, command, *paths = arguments
    files = sorted(file for path in paths for file in test_files(ROOT / path))
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    found = kept.setdefault(f"{table} {version} {benchmark_page.revision()}", {})
    if rest := [file for file in files if not found.get(file)]:
        found |= tests_passed(rest)
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(kept))
    status, what = summary(found)
    if table == "KubeRay" and not any(file.startswith("tests/kuberay/") for file in found):
        status = status.replace("tried", "rendered only")  # its CRDs alone were there
    benchmark_page.write(table, [(version, status, what, f"`{command}`")], PAGE)
    return int(status == "failed")


def write_kind(versions: Mapping[str, str], found: Mapping[str, int], command: str) -> None:
    """Rows of what the tests on a kind cluster have used.

    Args:
        versions: by name of the table, such as 1.34.4 (kind).
        found: as `tests_passed` returns it.
        command: that ran them.
    """
    status, what = summary(dict(found))
    for table, version in versions.items():
        benchmark_page.write(table, [(version, status, what, f"`{command}`")], PAGE)


def test_files(path: Path) -> list[str]:
    """The path itself, or the files of tests below it, relative to the repository."""
    files = path.glob("test_*.py") if path.is_dir() else [path]
    return [str(file.relative_to(ROOT)) for file in files]


def tests_passed(files: Collection[str]) -> dict[str, int]:
    """How many tests of each file have passed; 0 for a file of which one has not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-q", *files, f"--junitxml={report}"]
        names = "--override-ini=junit_family=xunit1"
        # By which this module was found; a test of what is imported from where would find it, too.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with subprocess.Popen([*command, names], cwd=ROOT, env=environment) as running:
            try:
                code = running.wait()
            except KeyboardInterrupt:  # pytest got it, too, and ends its servers
                code = running.wait()
        cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    if code not in (0, 1, 5):  # all passed, some failed, none found; else it ended in between
        raise SystemExit(f"pytest ended with {code}: nothing is said about this version")
    bad = {case.get("file") for case in cases if any(part.tag in NOT_PASSED for part in case)}
    ran = Counter(case.get("file") for case in cases)
    return {file: 0 if file in bad else ran[file] for file in files}


def summary(found: dict[str, int]) -> tuple[str, str]:
    """The status of a version and what was tried, from the passed tests of each file."""
    failed = sorted(Path(file).stem for file, passed in found.items() if not passed)
    if failed:
        return "failed", "not passed: " + ", ".join(f"`{name}`" for name in failed)
    texts = []
    for folder in sorted({str(Path(file).parent) for file in found}):
        tried = {file for file in found if str(Path(file).parent) == folder}
        every = set(test_files(ROOT / folder))
        missing = sorted(Path(file).stem for file in every - tried)
        number = sum(found[file] for file in tried)
        text = f"{number} tests of `{folder}`, {len(tried)} of {len(every)} files"
        if len(missing) > len(tried):
            text += ": " + ", ".join(f"`{name}`" for name in shortened(tried, every))
        elif missing:
            text += "; without " + ", ".join(f"`{name}`" for name in missing)
        texts.append(text)
    return "tried", "; ".join(texts)


def shortened(tried: Collection[str], every: Collection[str]) -> list[str]:
    """Names of what was tried; `test_runtime_*` for all files that begin so, if that was one."""
    stems = {Path(file).stem for file in tried}
    groups: dict[str, set[str]] = {}
    for name in (Path(file).stem for file in every):
        groups.setdefault("_".join(name.split("_")[:2]), set()).add(name)
    whole = {begin: names for begin, names in groups.items() if len(names) > 1 and names <= stems}
    return sorted([f"{begin}_*" for begin in whole] + list(stems - set().union(*whole.values())))


def try_pythons(command: str, versions: Collection[str]) -> int:
    """Writes which packages have no wheel for each Python; 1 if one of the main lock has none.

    PyTorch's own version is in $TORCH.
    """
    code = 0
    for version in versions:
        torch = without_wheel(version, os.environ["TORCH"] + "\n")
        texts = [f"`{torch or os.environ['TORCH']}`"]
        for lock in (file for pattern in LOCKS for file in sorted(ROOT.glob(pattern))):
            name = str(lock.relative_to(ROOT))
            missing = without_wheel(version, lock.read_text())
            code |= missing is not None and name == "requirements.lock"
            if missing:
                texts.append(f"{missing} (`{name}`)")
        status = "failed" if code else "resolves only"
        row = (version, status, "; ".join(["`requirements.lock`", *texts]), f"`{command}`")
        benchmark_page.write("Python", [row], PAGE)
    return code


def without_wheel(version: str, requirements: str) -> str | None:
    """The packages of a lock that have no wheel for a Python on Linux, in words; None if all have.

    Raises:
        subprocess.CalledProcessError: the registry did not answer, or the lock fits no Python.
    """
    command = [sys.executable, "-m", "uv", "pip", "install", "--dry-run", "--no-deps", "--quiet"]
    command += ["--python-version", version, "--python-platform", PLATFORM, "--no-build"]
    command += ["--requirements", "-"]
    if os.environ.get("PIP_INDEX_URL"):
        command += ["--default-index", os.environ["PIP_INDEX_URL"]]
    missing: list[str] = []
    while True:
        with tempfile.TemporaryDirectory() as nothing:  # what this environment has does not count
            ask = [*command, "--target", nothing]
            done = subprocess.run(ask, input=requirements, text=True, capture_output=True)
        if done.returncode == 0:
            return f"no wheel of {', '.join(missing)}" if missing else None
        named = re.search(r"Because (\S+==\S+) has no (?:usable )?wheels", done.stderr)
        if named is None:
            sys.stderr.write(done.stderr)
            done.check_returncode()
        else:  # uv names one at a time
            missing.append(named[1])
            block = re.escape(named[1]) + r"\b.*(?:\n[ \t].*)*"
            requirements = re.sub(block, "", requirements)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
