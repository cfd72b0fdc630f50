#!/usr/bin/env bash
# Ray Train 2.60.0: a worker group of which a worker is lost while its backend starts, as a spot node
# may be, is not ended. Its placement group stays, so the next worker group gets none, unless the
# cluster has the CPUs of two.
#
# `WorkerGroup._start` shuts a group down after an error only while its state is not built, and
# `Backend.on_start`, which forms the process group, runs after that. The controller forgets the
# group, and each further one waits for RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S in vain.
#
# Output as seen:
#   ray 2.60.0 {'CPUs of one': 'raised WorkerGroupStartupTimeoutError', 'CPUs of two': 'trained'}
#
# Fails if Ray behaves otherwise. Needs Python 3.10 or later and a package registry.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RAY_TMPDIR=$folder  # Ray leaves its logs there
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray[train]==2.60.0"
cat > "$folder/try.py" <<'PYTHON'
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

FOLDER = Path(sys.argv[1])


class Once(Backend):
    def on_start(self, worker_group, backend_config):
        worker_group.execute_single(0, lost_once, backend_config.mark)


@dataclass
class LostOnce(BackendConfig):
    mark: str = ""

    @property
    def backend_cls(self):
        return Once


def lost_once(mark):
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def train(config):
    Path(config["done"]).touch()


def outcome(name, cpus):
    ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="error")
    mark, done = str(FOLDER / f"{name}-lost"), FOLDER / f"{name}-done"
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"done": str(done)},
        backend_config=LostOnce(mark),
        scaling_config=ScalingConfig(num_workers=1, resources_per_worker={"CPU": 2}),
        run_config=RunConfig(
            name=name,
            storage_path=str(FOLDER),
            failure_config=FailureConfig(max_failures=1, controller_failure_limit=1),
        ),
    )
    try:
        trainer.fit()
        return "trained" if done.exists() else "returned"
    except Exception as error:
        found = getattr(error, "controller_failure", error)
        return f"raised {type(found).__name__}"
    finally:
        ray.shutdown()


FOLDER.mkdir()
seen = {"CPUs of one": outcome("one", 2), "CPUs of two": outcome("two", 4)}
print("ray", ray.__version__, seen, flush=True)
expected = {"CPUs of one": "raised WorkerGroupStartupTimeoutError", "CPUs of two": "trained"}
assert seen == expected, seen
PYTHON
RAY_TRAIN_V2_ENABLED=1 RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S=15 RAY_USAGE_STATS_ENABLED=0 \
  "$folder/venv/bin/python" "$folder/try.py" "$folder/results" 2>"$folder/log" \
  || { tail -n 40 "$folder/log"; exit 1; }
