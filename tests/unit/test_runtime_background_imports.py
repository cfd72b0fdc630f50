"""Modules that take seconds to import are imported beside the work, and change nothing else."""

import gc
from collections.abc import Iterator

import pytest

from trainingrun_runtime.imports import BackgroundImports, collector_paused


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    gc.enable()


def test_whoever_waits_gets_the_error_of_the_import() -> None:
    imports = BackgroundImports("no_such_module", "json")
    imports.wait("json")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        imports.wait("no_such_module")


def test_the_collector_runs_again_after_an_import() -> None:
    with collector_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), collector_paused():
        raise ImportError
    assert gc.isenabled()


def test_a_collector_that_was_disabled_stays_disabled() -> None:
    gc.disable()
    with collector_paused():
        pass
    assert not gc.isenabled()
