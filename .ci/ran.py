#!/usr/bin/env python3
"""Print how many tests of each file ran, and fail unless every file did.

Usage: ran.py REPORT PATH... The report is pytest's --junitxml with --override-ini
junit_family=xunit1, which names files; each PATH that is a file, and each test_*.py below a PATH
that is a folder, must be in it, and nothing may be skipped.
"""

import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree


def main() -> int:
    """Read, print, and set the exit status."""
    report, paths = Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]]
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []  # noqa: S314
    ran = Counter(case.get("file") for case in cases if case.find("skipped") is None)
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    found = (path.rglob("test_*.py") if path.is_dir() else [path] for path in paths)
    files = sorted(str(file) for each in found for file in each)
    for file in files:
        print(f"{ran[file]:5d} ran of {file}")
    missing = [file for file in files if not ran[file]]
    if skipped:
        print(f"skipped, where each must run: {', '.join(map(str, skipped))}", file=sys.stderr)
    if missing:
        print(f"no test ran of {', '.join(missing)}", file=sys.stderr)
    return 1 if skipped or missing or not files else 0


if __name__ == "__main__":
    sys.exit(main())
