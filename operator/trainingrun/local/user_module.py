"""Whether this machine has what `training.function` or a script names, known before Ray starts.

No code of the user's is executed for it: a module is located and read, never imported. What cannot
be told by reading is left to the ranks.
"""

import ast
import pkgutil
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from urllib.parse import unquote, urlsplit

from ..api.v1alpha1 import TrainingRun
from .machine import LocalError

_DYNAMIC = frozenset(
    {"__getattr__", "eval", "exec", "globals", "locals", "modules", "setattr", "vars"}
)
"""Names by which a module may get others that no statement of it binds."""


def check_script(script: Path | None) -> None:
    """Refuse a script that is no Python; one of training.code is not there yet.

    Raises:
        LocalError: It cannot be read as Python.
    """
    if script is not None and script.is_absolute():
        _parsed(script, f"the script {script.name}: {script}")


def locate(run: TrainingRun, places: Sequence[str]) -> str | None:
    """Where the run's function is, in a sentence; None: that is known later, or it has none.

    Args:
        run: As it was written.
        places: Folders in which the ranks find modules, beside those of this Python.

    Raises:
        LocalError: There is no such module, function or code, or it is no Python.
    """
    training = run.spec.training
    if training.code is not None:
        refuse_absent(training.code.uri, "training.code.uri")
    function = training.function
    if function is None or training.code is not None or training.requirements:
        return None  # the module may be in these
    module, _, name = function.partition(":")
    found = _spec(module, places)
    if found is None:
        looked = ", ".join(dict.fromkeys(each for each in places if not _is_own(each)))
        raise LocalError(
            f"training.function is {function}, and there is no module {module} in {looked} or "
            f"among the packages of {sys.prefix}; put the module beside the run's file, run the "
            "command in its folder, or set PYTHONPATH"
        )
    if found.origin is None or not found.origin.endswith(".py"):
        return None
    file = Path(found.origin)
    if not _may_have(_parsed(file, f"training.function {function}: {file}"), name):
        raise LocalError(
            f"training.function is {function}, and {file} has no {name}; correct the name"
        )
    return f"training.function {function} is that of {file}"


def refuse_absent(uri: str, field: str) -> None:
    """Refuse a file or folder of this machine that is not there.

    Raises:
        LocalError: It is not there.
    """
    parts = urlsplit(uri)
    if parts.scheme == "file" and not Path(unquote(parts.path)).exists():
        raise LocalError(f"{field} is {uri}, and this machine has nothing there; correct it")


def _is_own(folder: str) -> bool:
    """Whether it is a folder of this project, of which no user has to know."""
    return any(Path(folder, own).is_dir() for own in ("trainingrun", "trainingrun_runtime"))


def _spec(module: str, places: Sequence[str]) -> ModuleSpec | None:
    """The module as Python would find it, without its packages' code."""
    found: ModuleSpec | None = None
    path: list[str] | None = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        if path is None:
            found = _among(name, [*places, *sys.path]) or _of_other_finders(name)
        else:
            found = _among(name, path)
        if found is None:
            return None
        path = list(found.submodule_search_locations or [])
    return found


def _among(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """As Python's own finder, which asks for the parent package as it is once it is imported."""
    portions: list[str] = []
    for folder in folders:
        importer = pkgutil.get_importer(folder)
        found = importer.find_spec(name) if importer is not None else None
        if found is not None and found.loader is not None:
            return found
        portions += (found.submodule_search_locations or []) if found is not None else []
    if not portions:
        return None
    package = ModuleSpec(name, None, is_package=True)  # a folder without __init__.py
    package.submodule_search_locations = portions
    return package


def _of_other_finders(name: str) -> ModuleSpec | None:
    """Of built-in modules, and of packages that are installed as editable."""
    for finder in sys.meta_path:
        if finder is not PathFinder and (found := finder.find_spec(name, None)) is not None:
            return found
    return None


def _parsed(file: Path, what: str) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except OSError as error:
        raise LocalError(f"{what} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise LocalError(f"{what} is no Python in line {error.lineno}: {error.msg}") from None
    except ValueError as error:  # null bytes
        raise LocalError(f"{what} is no Python: {error}") from None


def _may_have(module: ast.Module, name: str) -> bool:
    """Whether a module may have an attribute; False: nothing in it can bind that name."""
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                bound = {node.name}
            case ast.alias():
                bound = {node.asname or node.name.partition(".")[0]}
                bound |= {name} if node.name == "*" else set()
            case ast.Name():
                bound = {node.id}
            case ast.Attribute():
                bound = {node.attr} & _DYNAMIC
            case _:
                continue
        if name in bound or bound & _DYNAMIC:
            return True
    return False
