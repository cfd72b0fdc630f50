"""A worker with TPUs on a real Ray, to which they are bookkeeping: it starts and has them all."""

import os
from pathlib import Path

import pytest

from support.local_runs import RESOURCES, ROOT, Run
from trainingrun.local.ray_nodes import LocalRay

pytestmark = pytest.mark.slow

TPUS = {**RESOURCES, "TPU": 4.0}


def test_a_worker_trains_with_its_tpus(tmp_path: Path) -> None:
    roots = os.pathsep.join(str(ROOT / root) for root in ("operator", "training_images", "tests"))
    environment = {"PYTHONPATH": roots, "RAY_USAGE_STATS_ENABLED": "0"}
    with LocalRay(tmp_path, environment, TPUS) as ray:
        ray.start(1)
        run = Run(ray, tmp_path, "support.own_tpus:train", {}, workers=1)
        run.contract = run.contract.model_copy(update={"resources_per_worker": TPUS})
        assert run.drive() == 0, run.log()
    assert run.metrics() == {"tpus": 4, "group": False}
