"""DeepSpeed's extension for CPUs is left out, however late or early a script imports DeepSpeed.

A stand-in has the one module of DeepSpeed that this is about; the library itself is used in
tests/frameworks/test_framework_remedies.py.
"""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainingrun_runtime.worker.deepspeed_import import leave_out_extension


@pytest.fixture(autouse=True)
def deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package in place of DeepSpeed, of which nothing is left after the test."""
    folder = tmp_path / "deepspeed" / "comm"
    folder.mkdir(parents=True)
    (tmp_path / "deepspeed" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "torch.py").write_text("def build_shm_op():\n    raise OSError('no compiler')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("LOCAL_SIZE", raising=False)
    finders, before = list(sys.meta_path), set(sys.modules)
    yield
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def its_module() -> Any:
    return importlib.import_module("deepspeed.comm.torch")


def test_it_is_not_built_where_a_script_imports_deepspeed_in_its_function() -> None:
    leave_out_extension()
    assert "deepspeed" not in sys.modules
    assert its_module().build_shm_op() is None
    assert its_module().__spec__.origin.endswith("torch.py")


def test_it_is_not_built_where_the_script_has_imported_deepspeed_before() -> None:
    its_module()
    leave_out_extension()
    assert its_module().build_shm_op() is None


def test_it_is_built_where_local_size_says_that_it_is_of_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_SIZE", "2")
    leave_out_extension()
    with pytest.raises(OSError, match="no compiler"):
        its_module().build_shm_op()


def test_other_modules_are_found_as_before() -> None:
    before = len(sys.meta_path)
    leave_out_extension()
    leave_out_extension()
    assert len(sys.meta_path) == before + 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("deepspeed.no_such_module")
