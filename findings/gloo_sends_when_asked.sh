#!/usr/bin/env bash
# torch 2.13.0, gloo: what a rank gives to an asynchronous all_gather leaves its process only once the
# other rank has called all_gather, too.
#
# `all_gather(..., async_op=True)` returns at once, but gloo sends the numbers when the receiver has said
# that it has a buffer. If a rank dies after its call and before the other's, the other never gets its
# numbers, however long that is; so the other ranks know of a rank's last step only if they had done
# that step, too. A receive that is posted before (`irecv`) gets the numbers, also when it is waited
# for long after the sender has died.
#
# Output as seen (the sender is killed 1 s after its call; the receiver asks after it has died):
#   torch 2.13.0: all_gather called by the receiver after that: RuntimeError
#   torch 2.13.0: irecv posted by the receiver before: received
#
# Fails if that changes. Needs Python 3.10 or later, a package registry, and some GB of disk unless
# pip finds PyTorch's build for CPUs.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
cat > "$folder/try.py" <<'PYTHON'
import os
import subprocess
import sys
import time

import torch
import torch.distributed as dist


def main(rank, way, folder):
    store = dist.FileStore(f"{folder}/{way}", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    mine, every = torch.full((4,), rank + 7), [torch.zeros(4, dtype=torch.int64) for _ in range(2)]
    if rank == 1:
        receive = dist.irecv(every[0], 0) if way == "irecv" else None
    dist.barrier()
    if rank == 0:
        sent = dist.isend(mine, 1) if way == "irecv" else dist.all_gather(every, mine, async_op=True)
        time.sleep(1)
        os.kill(os.getpid(), 9)
    for _ in range(600):  # until the sender has died
        if os.path.exists(f"{folder}/{way}.died"):
            break
        time.sleep(0.1)
    try:
        if receive is None:
            receive = dist.all_gather(every, mine, async_op=True)
        receive.wait()
        print("received" if every[0].tolist() == [7] * 4 else every, flush=True)
    except RuntimeError as error:
        print(type(error).__name__, flush=True)
    os._exit(0)


if len(sys.argv) > 2:
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
folder, seen = sys.argv[1], {}
for way, when in (("all_gather", "called by the receiver after that"),
                  ("irecv", "posted by the receiver before")):
    command = [sys.executable, "-W", "ignore", __file__]
    sender, receiver = (
        subprocess.Popen([*command, f"{rank}", way, folder], stdout=subprocess.PIPE, text=True,
                         stderr=subprocess.DEVNULL)
        for rank in (0, 1)
    )
    sender.wait(120)
    open(f"{folder}/{way}.died", "w").close()
    seen[way] = receiver.communicate(timeout=120)[0].strip()
    version = torch.__version__.partition("+")[0]
    print(f"torch {version}: {way} {when}: {seen[way]}")
assert seen == {"all_gather": "RuntimeError", "irecv": "received"}
PYTHON
"$folder/venv/bin/python" "$folder/try.py" "$folder"
