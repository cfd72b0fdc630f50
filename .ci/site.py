#!/usr/bin/env python3
"""Make the documents a site: `make docs`, in build/site. The README is its first page.

A page is made of each document, and of each file that a document links to, so that the site needs
no address of the repository. Every link and anchor is checked.
"""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PAGES = BUILD / "docs"
SETTINGS = "mkdocs.yml"
BESIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Documents that are not in the folder of the others, and their places in the site."""
PICTURES = (".svg", ".png")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".ipynb": "json"}
_LINK = re.compile(r"(?<=\]\()([\w./-]+)(?=[#)])")


def main() -> None:
    """Write the pages, and build the site of them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    sources = set()
    for path in [*BESIDE, *sorted(f"docs/{each.name}" for each in (ROOT / "docs").glob("*.md"))]:
        text = (ROOT / path).read_text()
        targets = _targets(path, text)
        sources |= {target for target in targets.values() if _place(target).startswith("source/")}
        _write(_place(path), _linked(path, text, targets))
    for source in sorted(sources):
        _write(_place(source), _page(source))
    for picture in PICTURES:
        for file in (ROOT / "docs").glob(f"*{picture}"):
            shutil.copy(file, PAGES)
    shutil.copy(ROOT / ".ci" / SETTINGS, BUILD)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", SETTINGS]
    sys.exit(subprocess.run(command, check=False, cwd=BUILD).returncode)


def _targets(path: str, text: str) -> dict[str, str]:
    """The files of the repository that a document links to, by the links' text."""
    folder = posixpath.dirname(path)
    links = {found[1] for found in _LINK.finditer(text)}
    found = {link: posixpath.normpath(posixpath.join(folder, link)) for link in links}
    return {link: target for link, target in found.items() if (ROOT / target).exists()}


def _place(target: str) -> str:
    """Where a file of the repository is in the site."""
    if target in BESIDE:
        return BESIDE[target]
    name = target.removeprefix("docs/")
    return name if name.endswith((".md", *PICTURES)) and "/" not in name else f"source/{target}.md"


def _linked(path: str, text: str, targets: dict[str, str]) -> str:
    folder = posixpath.dirname(_place(path)) or "."

    def link(found: re.Match[str]) -> str:
        target = targets.get(found[1])
        return found[1] if target is None else posixpath.relpath(_place(target), folder)

    return _LINK.sub(link, text)


def _page(source: str) -> str:
    path = ROOT / source
    if path.is_file():
        return f"# {source}\n\n{_code(path)}"
    files = sorted(each for each in path.iterdir() if each.is_file())
    return f"# {source}\n\n" + "\n".join(f"## {each.name}\n\n{_code(each)}" for each in files)


def _code(path: Path) -> str:
    return f"````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def _write(place: str, text: str) -> None:
    path = PAGES / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
