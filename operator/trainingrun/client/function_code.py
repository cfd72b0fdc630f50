"""The code of a training function, by its source: a rank imports what the user reads.

Nothing is pickled: what would be missing where the function is called is refused here, in a
sentence that says what to write.
"""

import ast
import builtins
import inspect
import itertools
import symtable
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..api.errors import RunError
from .submitting import pack, zipped

CELL = "cell"
"""Module that a function of a notebook cell becomes, unless its folder has one of that name."""
_OF_EVERY_MODULE = {"__name__", "__file__", "__doc__", "__builtins__"}
_OF_NOTEBOOKS = {"display", "get_ipython"}
"""What IPython adds to the builtins of its process, and no rank has."""
_KNOWN = (frozenset(dir(builtins)) | _OF_EVERY_MODULE) - _OF_NOTEBOOKS


@dataclass(frozen=True)
class FunctionCode:
    """A function as a run names it."""

    function: str
    """For `training.function`: `module:name`."""
    packed: bytes | None
    """Zip file for `training.code`; None: the function is of an installed package, which the image
    has to have."""


def code_of(function: Callable[..., Any], folder: Path | None = None) -> FunctionCode:
    """The code that has to be sent for a function.

    Args:
        function: Of a module, of a notebook cell or of the script that runs.
        folder: All code that it needs, which is packed as `submit --code` does; None: the file or
            the package of its module, of a cell the function alone.

    Raises:
        RunError: It cannot be called from its source alone.
    """
    name, module = getattr(function, "__name__", ""), _module_of(function)
    if not inspect.isfunction(function) or not name.isidentifier():
        raise RunError(
            f"{function!r} is no function that can be sent; write one with def, in a module or in "
            "a notebook cell"
        )
    if module is None or "<locals>" in function.__qualname__:
        source = _own_source(function)
        if folder is not None:
            free = _free_name(folder)
            return FunctionCode(f"{free}:{name}", pack(folder, more={f"{free}.py": source}))
        return FunctionCode(f"{CELL}:{name}", zipped([(f"{CELL}.py", source, False)]))
    if getattr(module, name, None) is not function:
        raise RunError(
            f"{module.__name__} has another {name} than {function.__qualname__}; pass a function "
            "by the name under which its module has it"
        )
    return FunctionCode(f"{module.__name__}:{name}", _packed(module, folder))


def _free_name(folder: Path) -> str:
    """`CELL`, or with a number: a name that no module or package in the folder has."""
    names = itertools.chain([CELL], (f"{CELL}_{number}" for number in itertools.count(2)))
    return next(
        name
        for name in names
        if not (folder / name).exists() and not (folder / f"{name}.py").exists()
    )


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    """The module of a function; None: a notebook cell, a prompt, or the script that runs."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is None or module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return None
    return module


def _packed(module: ModuleType, folder: Path | None) -> bytes | None:
    file = Path(module.__file__ or "").resolve()
    top, *below = module.__name__.split(".")
    root = file.parents[len(below) + (file.name == "__init__.py")]
    if folder is not None:
        if folder.resolve() != root:
            raise RunError(
                f"code is {folder}, and module {module.__name__} is imported from {root}; pass "
                f"code={str(root)!r}"
            )
        return pack(folder)
    if _installed(top, root):
        return None
    if below or file.name == "__init__.py":
        return pack(root / top, prefix=f"{top}/")
    content = file.read_bytes()
    for name in _imported(content):
        if name != top and ((root / f"{name}.py").is_file() or (root / name).is_dir()):
            raise RunError(
                f"{file.name} imports {name}, which is beside it, and would be sent alone; pass "
                f"code={str(root)!r}, which sends the folder"
            )
    return zipped([(file.name, content, False)])


def _installed(package: str, root: Path) -> bool:
    """Whether a package is one of the environment's, and no code that is being written."""
    places = {Path(place).resolve() for place in sysconfig.get_paths().values()}
    return package == "trainingrun_runtime" or root in places or root.name == "dist-packages"


def _imported(content: bytes) -> Iterator[str]:
    """The first names of the modules that a module imports."""
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _own_source(function: Callable[..., Any]) -> bytes:
    """A module with a function alone.

    Raises:
        RunError: Its source is not known, or uses what is outside of it.
    """
    name = function.__name__
    try:
        source = textwrap.dedent(inspect.getsource(function))
        table = symtable.symtable(source, name, "exec")
    except (OSError, TypeError):
        raise RunError(
            f"the source of {name} is not known here; define it in a file or in a notebook cell"
        ) from None
    except SyntaxError as error:
        raise RunError(
            f"the source of {name} is no plain Python ({error.msg}); leave out what only a "
            "notebook understands"
        ) from None
    outside = sorted(set(_globals(table)) - _KNOWN - {name})
    if outside:
        values = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        # The signature is evaluated before what is in the function.
        bodies = [below for below in table.get_children() if below.get_name() == name]
        inside = {used for body in bodies for used in _globals(body)}
        advice = [
            *_advice([each for each in outside if each in inside], values),
            *_advice_of_signature(source, outside),
        ]
        raise RunError(
            f"{name} uses {', '.join(outside)} from outside of it, and its own source alone is "
            f"sent; {'; '.join(advice)}"
        )
    return source.encode()


def _globals(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that a source, or a scope in it, expects outside; one that it sets itself is known."""
    for symbol in table.get_symbols():
        outer = table.get_type() == "module" or symbol.is_global()
        if outer and symbol.is_referenced() and not symbol.is_assigned():
            yield symbol.get_name()
    for below in table.get_children():
        yield from _globals(below)


def _advice(outside: list[str], values: Mapping[str, Any]) -> Iterator[str]:
    """What to write instead, of the names in the function."""
    inside, config, leave = [], [], []
    for name in outside:
        value = values.get(name)
        if name in _OF_NOTEBOOKS:
            leave.append(name)
        elif isinstance(value, ModuleType):
            renamed = "" if value.__name__ == name else f" as {name}"
            inside.append(f"`import {value.__name__}{renamed}`")
        elif callable(value) and getattr(value, "__module__", "__main__") != "__main__":
            inside.append(f"`from {value.__module__} import {name}`")
        elif name in values and not callable(value):
            config.append(name)
        else:
            inside.append(f"the definition of {name}")
    if inside:
        yield f"put {', '.join(inside)} inside of it"
    if config:
        yield f"pass {', '.join(config)} in config, or set it inside"
    if leave:
        yield f"leave out {', '.join(leave)}, which only a notebook has"


def _advice_of_signature(source: str, outside: list[str]) -> Iterator[str]:
    """What to write instead, of the names in what is evaluated where the function is defined."""
    defined = ast.parse(source).body[0]
    if not isinstance(defined, ast.FunctionDef | ast.AsyncFunctionDef):
        return
    every = [node for node in ast.walk(defined.args) if isinstance(node, ast.arg)]
    for parts, sentence in (
        (
            [*(one.annotation for one in every), defined.returns],
            "leave out the types with {} of its signature, or quote them",
        ),
        (
            [*defined.args.defaults, *defined.args.kw_defaults],
            "set the defaults with {} inside of it",
        ),
        (defined.decorator_list, "leave out the decorators with {}"),
    ):
        nodes = [node for part in parts if part is not None for node in ast.walk(part)]
        used = {node.id for node in nodes if isinstance(node, ast.Name)}
        if named := [name for name in outside if name in used]:
            yield sentence.format(", ".join(named))
