"""Runs the code cells of notebooks as a kernel does: `python -m support.notebook_cells FILE…`.

All of them share the names of `__main__`, and what a cell ends with is shown by its HTML, else by
its repr. The last file may be plain Python, as one more cell.
"""

import ast
import json
import linecache
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def code_cells(notebook: Path) -> list[str]:
    """The sources of the code cells of a notebook, or the blocks of Python of a Markdown page."""
    text = notebook.read_text()
    if notebook.suffix == ".md":
        return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if notebook.suffix == ".py":
        return [text]
    found = json.loads(text)["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run(sources: Iterator[str], names: dict[str, Any]) -> None:
    """Run cells one after the other."""
    for number, source in enumerate(sources, 1):
        file = f"<cell {number}>"
        # Where `inspect.getsource` finds what is in no file.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        tree = ast.parse(source, file)
        shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, file, "exec"), names)
        if isinstance(shown, ast.Expr):
            value = eval(compile(ast.Expression(shown.value), file, "eval"), names)
            html = getattr(value, "_repr_html_", lambda: None)()
            if value is not None:
                print(html or repr(value), flush=True)


if __name__ == "__main__":
    run((cell for file in sys.argv[1:] for cell in code_cells(Path(file))), globals())
