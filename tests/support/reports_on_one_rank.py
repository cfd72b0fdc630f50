"""A training function whose rank 0 reports, and whose other ranks never do."""

import threading
from typing import Any

import ray.train


def train(config: dict[str, Any]) -> None:
    """Report once on rank 0, which then waits for the others for good."""
    if ray.train.get_context().get_world_rank() == 0:
        ray.train.report({"loss": config["lr"]})
    else:
        threading.Event().wait()
