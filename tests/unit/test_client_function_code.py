"""What is sent of a training function: its source, or a sentence that says what is missing."""

import importlib
import io
import linecache
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainingrun.api.errors import RunError
from trainingrun.client.function_code import code_of

_cells = iter(range(1, 1000))


def cell(source: str, name: str = "train", **names: Any) -> Callable[..., Any]:
    """A function that a notebook cell has defined, among the names of other cells."""
    file = f"<cell {next(_cells)} of a test>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    found = {"__name__": "__main__", **names}
    exec(compile(source, file, "exec"), found)
    function: Callable[..., Any] = found[name]
    return function


def files(packed: bytes | None) -> dict[str, str]:
    assert packed is not None
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_function_of_a_cell_is_sent_as_a_module_with_all_that_it_uses_inside() -> None:
    source = """\
def train(config, epochs=3):
    import torch
    from json import dumps as dumped

    class Model(torch.nn.Module):
        size = epochs

        def forward(self, x):
            return super().forward(x) if __name__ else [y for y in x]

    def helper(n):
        return helper(n - 1) if n > 0 else len(config)

    global counter
    counter = 0
    counter += helper(3)
    return dumped(Model), train, print, {k: v for k, v in config.items()}
"""
    code = code_of(cell("x = 1\n\n" + source))
    assert code.function == "cell:train"
    assert files(code.packed) == {"cell.py": source}
    assert code_of(cell(source)).packed == code.packed  # the same bytes have the same name


@pytest.mark.parametrize(
    ("source", "names", "sentence"),
    [
        pytest.param(
            "def train(config):\n    return np.zeros(3), json.dumps(config)\n",
            {"np": io, "json": sys.modules["json"]},
            "train uses json, np from outside of it, and its own source alone is sent; put "
            "`import json`, `import io as np` inside of it",
            id="modules",
        ),
        pytest.param(
            "def train(config):\n    return Path(config) / helper(lr)\n",
            {"Path": Path, "lr": 0.1, "helper": cell("def train(): pass\n")},
            "train uses Path, helper, lr from outside of it, and its own source alone is sent; put "
            f"`from {Path.__module__} import Path`, the definition of helper inside of it; pass lr "
            "in config, or set it inside",
            id="classes-functions-and-values",
        ),
        pytest.param(
            "def train(config):\n    def inner():\n        return [lr for _ in config]\n",
            {"lr": 0.1},
            "train uses lr from outside of it, and its own source alone is sent; pass lr in config,"
            " or set it inside",
            id="in-an-inner-scope",
        ),
        pytest.param(
            "@cached\ndef train(config: dict[str, Any], batch=size) -> Any:\n    Any = int\n",
            {"Any": Any, "size": 3, "cached": lambda function: function},
            "train uses Any, cached, size from outside of it, and its own source alone is sent; "
            "leave out the types with Any of its signature, or quote them; set the defaults with "
            "size inside of it; leave out the decorators with cached",
            id="in-its-signature",
        ),
        pytest.param(
            "def train(config: np.IOBase):\n    return np.zeros(3)\n",
            {"np": io},
            "train uses np from outside of it, and its own source alone is sent; put `import io as "
            "np` inside of it; leave out the types with np of its signature, or quote them",
            id="in-its-signature-and-in-it",
        ),
        pytest.param(
            "def train(config):\n    return undefined\n",
            {},
            "train uses undefined from outside of it, and its own source alone is sent; put the "
            "definition of undefined inside of it",
            id="nothing-of-that-name",
        ),
    ],
)
def test_what_a_function_uses_from_outside_is_named_with_what_to_write_instead(
    source: str, names: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(RunError) as refused:
        code_of(cell(source, **names))
    assert str(refused.value) == sentence


def test_a_function_whose_types_are_quoted_is_sent() -> None:
    source = 'def train(config: "dict[str, Any]") -> "None": ...\n'
    assert files(code_of(cell(source)).packed) == {"cell.py": source}


def test_what_ipython_adds_to_the_builtins_is_no_name_that_a_rank_has() -> None:
    added = """\
import builtins
builtins.display, builtins.get_ipython = print, lambda: None
import __main__, linecache
from trainingrun.client.function_code import code_of
source = "def train(config):\\n    display(get_ipython())\\n"
linecache.cache["<cell>"] = (len(source), None, source.splitlines(keepends=True), "<cell>")
exec(compile(source, "<cell>", "exec"))
code_of(train)
"""
    done = subprocess.run([sys.executable, "-c", added], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].partition(": ")[2] == (
        "train uses display, get_ipython from outside of it, and its own source alone is sent; "
        "leave out display, get_ipython, which only a notebook has"
    )


def test_a_closure_of_a_module_is_sent_by_its_own_source_and_refused_with_what_it_holds() -> None:
    lr = 0.1

    def train(config: dict[str, float]) -> float:
        return config["lr"] * lr

    def alone(config: dict[str, float]) -> float:
        return config["lr"]

    with pytest.raises(RunError, match=r"^train uses lr from outside of it, .*; pass lr in config"):
        code_of(train)
    found = files(code_of(alone).packed)["cell.py"]
    assert found == 'def alone(config: dict[str, float]) -> float:\n    return config["lr"]\n'


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        pytest.param(lambda config: None, "is no function that can be sent", id="lambda"),
        pytest.param(print, "is no function that can be sent", id="builtin"),
        pytest.param(Path, "is no function that can be sent", id="class"),
    ],
)
def test_what_is_no_function_with_a_name_is_refused(
    function: Callable[..., Any], sentence: str
) -> None:
    with pytest.raises(RunError, match=sentence):
        code_of(function)


def test_a_function_whose_source_nobody_has_is_refused() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("def train(config): ...", names)
    with pytest.raises(RunError, match=r"^the source of train is not known here; define it in a"):
        code_of(names["train"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which modules are imported, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_is_sent_as_its_file_and_a_package_as_its_folder(project: Path) -> None:
    (project / "alone.py").write_text("import json\ndef train(config): ...\n")
    package = project / "mine"
    (package / "models").mkdir(parents=True)
    for name in ("__init__.py", "models/__init__.py", "models/small.py"):
        (package / name).write_text("")
    (package / "loop.py").write_text("from mine.models import small\ndef train(config): ...\n")
    (package / ".gitignore").write_text("data.bin\n")
    (package / "data.bin").write_text("large")
    code = code_of(importlib.import_module("alone").train)
    assert (code.function, list(files(code.packed))) == ("alone:train", ["alone.py"])
    code = code_of(importlib.import_module("mine.loop").train)
    assert code.function == "mine.loop:train"
    assert list(files(code.packed)) == [
        f"mine/{name}"
        for name in (
            ".gitignore",
            "__init__.py",
            "loop.py",
            "models/__init__.py",
            "models/small.py",
        )
    ]


def test_a_module_that_imports_what_is_beside_it_is_sent_with_its_folder(project: Path) -> None:
    (project / "loop.py").write_text("import helpers\ndef train(config): ...\n")
    (project / "helpers.py").write_text("")
    train = importlib.import_module("loop").train
    with pytest.raises(RunError) as refused:
        code_of(train)
    assert str(refused.value) == (
        "loop.py imports helpers, which is beside it, and would be sent alone; pass "
        f"code={str(project)!r}, which sends the folder"
    )
    assert list(files(code_of(train, project).packed)) == ["helpers.py", "loop.py"]
    with pytest.raises(RunError, match=rf"^code is {project.parent}, and module loop is imported"):
        code_of(train, project.parent)


def test_a_cell_can_have_a_folder_beside_it(project: Path) -> None:
    (project / "helpers.py").write_text("")
    code = code_of(cell("def train(config):\n    import helpers\n"), project)
    assert list(files(code.packed)) == ["helpers.py", "cell.py"]


@pytest.mark.parametrize("taken", ["cell.py", "cell/__init__.py"])
def test_a_cell_takes_no_name_that_a_module_of_its_folder_has(project: Path, taken: str) -> None:
    (project / taken).parent.mkdir(exist_ok=True)
    (project / taken).write_text("mine = True\n")
    source = "def train(config):\n    from cell import mine\n"
    code = code_of(cell(source), project)
    assert code.function == "cell_2:train"
    assert files(code.packed) == {taken: "mine = True\n", "cell_2.py": source}


def test_an_installed_package_is_the_images() -> None:
    from trainingrun_runtime.examples import linear

    for function, name in (
        (linear.train, "trainingrun_runtime.examples.linear:train"),
        (pytest.importorskip("yaml").safe_load, "yaml:safe_load"),
    ):
        code = code_of(function)
        assert (code.function, code.packed) == (name, None)


def test_a_function_that_its_module_has_under_no_name_is_refused(project: Path) -> None:
    (project / "wrapped.py").write_text("def train(config): ...\nold = train\ntrain = None\n")
    with pytest.raises(RunError, match=r"^wrapped has another train than train; pass a function"):
        code_of(importlib.import_module("wrapped").old)
