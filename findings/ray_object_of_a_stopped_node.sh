#!/usr/bin/env bash
# Ray 2.60.0: a task that reads a small object waits 10 s or more for the copy of a node that does not
# answer, although another node has one and answers.
#
# A raylet asks one of the nodes that have a copy, chosen at random, and another one after
# `object_manager_pull_timeout_ms` (10 s). Until the health checks have failed, for about half a
# minute by default, a node that has stopped or whose network is gone is asked like any other. So
# what every worker reads once, such as a function in `ray.put`, delays the workers that replace
# those of a lost node. Here the node's raylet is stopped by SIGSTOP.
#
# Output as seen:
#   ray 2.60.0: slowest read 0.02 s, with a stopped node 70.16 s, the quickest 0.00 s
#   (10 s where the stopped node is asked first, 30 s where it is asked twice, 70 s three times)
#
# Fails if Ray behaves otherwise. Needs Python 3.10 or later and a package registry.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export RAY_TMPDIR=$folder  # Ray leaves its logs there
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "ray==2.60.0"
cat > "$folder/try.py" <<'PYTHON'
import os
import signal
import time

import ray
from ray.cluster_utils import Cluster

OBJECTS = 10
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
stopped = cluster.add_node(num_cpus=1, resources={"stopped": 1})
cluster.add_node(num_cpus=1, resources={"reads": 1})
ray.init(address=cluster.address, log_to_driver=False)


@ray.remote(num_cpus=0)
def read(objects):
    seconds = []
    for reference in objects:
        began = time.monotonic()
        ray.get(reference)
        seconds.append(time.monotonic() - began)
    return seconds


def objects():
    return [ray.put(bytes(1_000_000)) for _ in range(OBJECTS)]


def on(name, references):
    return ray.get(read.options(resources={name: 0.1}).remote(references), timeout=120)


first, second = objects(), objects()
on("stopped", first + second)
usual = on("reads", first)
raylet = stopped.all_processes["raylet"][0].process.pid
os.kill(raylet, signal.SIGSTOP)
try:
    late = on("reads", second)
finally:
    os.kill(raylet, signal.SIGCONT)
print(
    f"ray {ray.__version__}: slowest read {max(usual):.2f} s, "
    f"with a stopped node {max(late):.2f} s, the quickest {min(late):.2f} s"
)
assert max(usual) < 2, usual
assert min(late) < 2, late
assert max(late) > 9.5, late
ray.shutdown()
cluster.shutdown()
PYTHON
RAY_USAGE_STATS_ENABLED=0 "$folder/venv/bin/python" "$folder/try.py" 2>"$folder/log" \
  || { tail -n 40 "$folder/log"; exit 1; }
