"""How long does training stand still while a checkpoint is copied from a GPU to host memory?

    python tests/benchmarks/gpu_copies.py [--rounds 3] [--device cuda]

A transformer of 520 million parameters in 32 bits and what AdamW keeps for them: 6.2 GB. Places are
made for the copies before the first checkpoint, and used again for each further one. The last line
is what a copy into memory that is not pinned takes.
"""

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("operator", "training_images")]

import torch  # noqa: E402

from trainingrun_runtime.checkpoints.staging import Staging, is_pinned_for  # noqa: E402

SHAPES = (
    *48 * [(4096, 1024)],
    *48 * [(1024, 4096)],
    *24 * [(3072, 1024)],
    *24 * [(1024, 1024)],
    *2 * [(8192, 1024)],
)
COPIES = 3
"""A parameter, and AdamW's two averages of its gradients."""


def main() -> None:
    """Print seconds and gigabytes per second of each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as Ray does
    state = [torch.rand(s, device=arguments.device) for s in SHAPES for _ in range(COPIES)]
    size = sum(tensor.nbytes for tensor in state) / 1e9
    pinned = sum(tensor.nbytes for tensor in state if is_pinned_for(tensor)) / 1e9
    print(f"{size:.1f} GB, {pinned:.1f} GB of it into pinned memory")
    staging = Staging()
    for number in range(1, arguments.rounds + 1):
        began = time.perf_counter()
        staging.begin()
        for tensor in state:
            staging.placed(tensor)
        placed = time.perf_counter()
        staging.copy()
        copy_s = time.perf_counter() - placed
        print(
            f"checkpoint {number}: places {placed - began:.3f} s, copy {copy_s:.3f} s, "
            f"{size / copy_s:.1f} GB/s"
        )
    began = time.perf_counter()
    for tensor in state:
        tensor.to("cpu", copy=True)
    print(f"not pinned: {size / (time.perf_counter() - began):.1f} GB/s")


if __name__ == "__main__":
    main()
