#!/usr/bin/env python3
"""Draw the layers of the packages into CONTRIBUTING.md: `layers.py [--check]`.

What imports what is read from import-linter's contracts in pyproject.toml, and what a package is
from the first sentence of its docstring. With --check nothing is written, and a drawing that
differs ends it with code 1.
"""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "CONTRIBUTING.md"
DRAWING = re.compile(r"(?<=<!-- layers -->\n).*?(?=<!-- end of layers -->)", re.DOTALL)
IMPORT_ROOTS = (ROOT / "operator", ROOT / "training_images")
LONGEST = 95  # characters of a sentence that is shown as a whole


def purpose(package: str) -> str:
    """The first sentence of a package's or module's docstring; of a long one what is before `:`."""
    places = [root / package.replace(".", "/") for root in IMPORT_ROOTS]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]
    source = next(file for file in files if file.exists()).read_text()
    docstring = " ".join((ast.get_docstring(ast.parse(source)) or "").split("\n\n")[0].split())
    if not docstring:
        sys.exit(f"{package} has no docstring; write what it is, for the drawing of the layers")
    sentence = re.split(r"(?<=\.)\s", docstring)[0].rstrip(".")
    return sentence if len(sentence) <= LONGEST else sentence.partition(":")[0]


def drawn(package: str, layers: dict[str, list[list[str]]], indent: str) -> list[str]:
    """A line for each package in a layer, the highest layer first; a bracket joins a layer."""
    lines = []
    for layer in layers.get(package, []):
        marks = " " if len(layer) == 1 else "┌" + "│" * (len(layer) - 2) + "└"
        for mark, name in zip(marks, layer, strict=True):
            lines.append(f"{indent}{mark} {name.rpartition('.')[2]}".ljust(26) + purpose(name))
            lines += drawn(name, layers, indent + "    ")
    return lines


def drawing() -> str:
    """The layers of each import root, and of each package in it that has some."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers: dict[str, list[list[str]]] = {}
    for contract in (one for one in settings["contracts"] if one["type"] == "layers"):
        for container in contract.get("containers", [""]):
            names = [re.split(r"\s*\|\s*", layer) for layer in contract["layers"]]
            full = [[f"{container}.{name}".lstrip(".") for name in layer] for layer in names]
            layers[full[0][0].rpartition(".")[0]] = full
    blocks = [
        "\n".join([root.ljust(26) + purpose(root), *drawn(root, layers, "")])
        for root in sorted(settings["root_packages"], key=lambda root: root not in layers)
    ]
    return "```text\n" + "\n\n".join(blocks) + "\n```\n"


if __name__ == "__main__":
    page, drawings = DRAWING.subn(lambda _: drawing(), PAGE.read_text())
    if drawings != 1:
        sys.exit("CONTRIBUTING.md lacks its <!-- layers --> … <!-- end of layers -->")
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        sys.exit("the layers in CONTRIBUTING.md are out of date; run `make generate`")
