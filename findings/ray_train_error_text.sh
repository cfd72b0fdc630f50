#!/usr/bin/env bash
# Ray Train 2.60.0: a training function that raises an error whose text holds a lone surrogate has
# succeeded.
#
# Python has such a character for each byte of a file's name that is no UTF-8 (`os.fsdecode`). A
# worker's log stream is strict UTF-8, so logging the error raises another one, and the thread ends
# before it tells either; `fit()` returns a Result without an error. With the same text in ASCII it
# raises WorkerGroupError.
#
# Output as seen:
#   ray 2.60.0 {'ascii': 'raised WorkerGroupError', 'surrogate': 'returned, error None'}
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
import sys

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

TEXTS = {"ascii": "madchen.wav is no recording", "surrogate": os.fsdecode(b"m\xe4dchen.wav is no recording")}


def train(config):
    raise ValueError(TEXTS[config["text"]])


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
seen = {}
for name in TEXTS:
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"text": name},
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(name=name, storage_path=sys.argv[1]),
    )
    try:
        seen[name] = f"returned, error {trainer.fit().error!r}"
    except Exception as error:
        seen[name] = f"raised {type(error).__name__}"
print("ray", ray.__version__, seen, flush=True)
assert seen == {"ascii": "raised WorkerGroupError", "surrogate": "returned, error None"}, seen
PYTHON
LC_ALL=C.UTF-8 RAY_TRAIN_V2_ENABLED=1 RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" "$folder/try.py" "$folder/results" 2>"$folder/log" \
  || { tail -n 40 "$folder/log"; exit 1; }
