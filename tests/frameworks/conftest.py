"""A Ray of two workers for each module, whose runs keep a journal of their steps."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.framework_runs import Journal, variables
from support.local_runs import Run, two_workers
from trainingrun.local.ray_nodes import LocalRay


@pytest.fixture(scope="module", autouse=True)
def own_environment() -> Iterator[None]:
    """What a module's frameworks set, as Accelerate does with RANK, ends with the module."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Journal:
    """What the module's runs note."""
    return Journal(tmp_path_factory.mktemp("journal") / "steps")


@pytest.fixture(scope="module")
def ray(tmp_path_factory: pytest.TempPathFactory, journal: Journal) -> Iterator[LocalRay]:
    with two_workers(tmp_path_factory.mktemp("ray"), **variables(journal.folder)) as cluster:
        yield cluster


@pytest.fixture
def a_run(ray: LocalRay, tmp_path: Path) -> Callable[..., Run]:
    """Makes runs: `a_run("lightning", epochs=8)` of an example, or `a_run(script=Path(...))`."""

    def make(example: str = "", script: Path | None = None, **config: Any) -> Run:
        folder = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        function = f"trainingrun_runtime.examples.frameworks.{example}:train" if example else None
        return Run(ray, folder, function, config, script=script)

    return make
