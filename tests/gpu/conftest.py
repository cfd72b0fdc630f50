"""A Ray of two workers that share the machine's first NVIDIA GPU. Without one these tests fail."""

from collections.abc import Iterator

import pytest

from support.local_runs import two_workers
from trainingrun.local.ray_nodes import LocalRay


@pytest.fixture(scope="session")
def ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRay]:
    """Of two workers, to each of which the same GPU is its own."""
    with two_workers(tmp_path_factory.mktemp("ray"), gpus=("0", "0")) as cluster:
        yield cluster
