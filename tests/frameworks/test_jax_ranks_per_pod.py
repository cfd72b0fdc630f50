"""JAX's ranks in pods of two, on a real Ray to which GPUs are bookkeeping; JAX computes on CPUs."""

import json
from pathlib import Path

from support.local_runs import Run, two_workers

WORKERS, PER_NODE = 4, 2

SCRIPT = """
import json, os, pathlib, sys
import ray
import ray.train
from ray.train import ScalingConfig
from ray.train.v2.jax import JaxTrainer

def train(config):
    import jax

    rank = ray.train.get_context().get_world_rank()
    devices = os.environ["CUDA_VISIBLE_DEVICES"]
    found = {"devices": devices, "given": ray.get_gpu_ids(), "ranks": jax.process_count()}
    pathlib.Path(config["places"], f"{rank}.json").write_text(json.dumps(found))
    ray.train.report({"rank": rank})

JaxTrainer(
    train,
    train_loop_config={"places": sys.argv[1]},
    scaling_config=ScalingConfig(num_workers=4, use_gpu=True),
).fit()
"""


def test_each_rank_of_a_pod_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    gpus = tuple(map(str, range(WORKERS)))
    (tmp_path / "ray").mkdir()
    # With CUDA where there is some; Ray's own JaxConfig then has the ranks share devices.
    cluster = two_workers(
        tmp_path / "ray", workers_per_node=PER_NODE, gpus=gpus, JAX_PLATFORMS="cuda,cpu"
    )
    with cluster as ray:
        run = Run(ray, tmp_path, None, {}, script=tmp_path / "script.py", workers=WORKERS)
        each = {**run.contract.resources_per_worker, "GPU": 1.0}
        run.contract = run.contract.model_copy(
            update={"resources_per_worker": each, "script_args": [str(tmp_path)]}
        )
        assert run.drive() == 0, run.log()
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORKERS)]
    assert [place["ranks"] for place in found] == [WORKERS] * WORKERS
    assert sorted(place["devices"] for place in found) == ["0", "1", "2", "3"]
    assert [place["devices"].split(",") for place in found] == [
        list(map(str, place["given"])) for place in found
    ]
