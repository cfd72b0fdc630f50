"""What makes an example repeat itself to the bit and shows that it did, and slows it down."""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

T = TypeVar("T")

REPEATABLE = {"find_unused_parameters": True}
"""For `prepare_model(parallel_strategy_kwargs=...)`. Without it, DistributedDataParallel arranges
the gradients anew after its first step, and with three or more workers that changes the order of
the sums: a resumed run, which has a first step more, would differ in the last bit."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Keys of `training.config` that each example has."""

    seed: int = 0
    """Decides the weights, the data and its order."""
    step_seconds: float = 0.0
    """A step takes at least this many seconds, so that a demonstration can interrupt it."""


@dataclass(frozen=True, kw_only=True)
class Epochs(Settings):
    """Those of an example that sees its data some times over."""

    epochs: int = 20
    """Times that the data is seen."""
    lr: float = 0.05
    """Learning rate, at the begin."""
    batch_size: int = 64
    """Samples per worker and step."""


def configured(kind: type[T], config: Mapping[str, Any] | None) -> T:
    """The example's settings from `training.config`.

    Raises:
        ValueError: The config has a key that the example does not have, such as a misspelled one.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in config or {}:
        if name not in known:
            raise ValueError(f"training.config has {name!r}; this example knows {', '.join(known)}")
    return kind(**(config or {}))


def seed_everything(seed: int) -> None:
    """Same seed, same machine type, same number of workers: same weights."""
    torch.manual_seed(seed)
    # The order in which threads add up decides the last bit, and their number differs by node.
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Have the config decide: a restored optimizer has the learning rate that it was saved with."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def steps_per_epoch(samples: int, batch_size: int, workers: int) -> int:
    """Steps that see the data once; the few samples that fill no batch are left out.

    Raises:
        ValueError: All workers together need more samples per step than there are.
    """
    if samples < batch_size * workers:
        raise ValueError(
            f"{workers} workers with batch_size {batch_size} need {batch_size * workers} samples "
            f"per step, and there are {samples}; lower batch_size"
        )
    return samples // (batch_size * workers)


def batch(
    step: int, samples: int, batch_size: int, rank: int, workers: int, seed: int
) -> torch.Tensor:
    """Which samples a worker takes in a step: a function of its arguments and nothing else.

    No iterator has to be saved or wound forward after a restart. Every epoch has its own order, and
    within an epoch no sample is taken twice.
    """
    epoch, position = divmod(step, steps_per_epoch(samples, batch_size, workers))
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    first = (position * workers + rank) * batch_size
    return torch.from_numpy(order[first : first + batch_size])


def scores(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Accuracy and mean loss; the images, their labels and the model are on one device."""
    with torch.no_grad():
        answers = model(images)
    return {
        "accuracy": (answers.argmax(1) == labels).float().mean().item(),
        "loss": cross_entropy(answers, labels).item(),
    }


def weights_sha256(model: torch.nn.Module) -> str:
    """SHA-256 over the bytes of all weights and buffers: equal only if every bit is.

    Every rank calls it where each has a part of them.
    """
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        # Without the prefix that data parallelism puts before each name.
        digest.update(name.removeprefix("module.").encode())
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        digest.update(whole.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


JOURNAL_ENV = "STEP_LOG_FOLDER"
"""If set, rank 0 appends `<Unix time> <steps done>` per step to `<folder>/<pod>.log`, from which
the seconds without training and the steps lost can be counted afterwards."""
PACE_FILE = "pace"
"""If that folder has such a file, the number in it replaces the seconds per step at once: a test
then makes a run last until it has done with it."""


class Pace:
    """At least so many seconds per step, so that a demonstration can interrupt a small model.

    Call `wait` at the beginning of every step, and itself at the end.
    """

    def __init__(self, seconds: float, rank: int) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        folder = os.environ.get(JOURNAL_ENV) if rank == 0 else None
        pod = os.environ.get("POD_NAME", f"process-{os.getpid()}")
        self._journal = Path(folder) / f"{pod}.log" if folder else None
        self._pace_file = Path(folder) / PACE_FILE if folder else None

    def wait(self) -> None:
        """Wait until the last step has taken long enough.

        Not at its end: the time between the ranks' last exchange and a step's end is short in
        practice, and a rank that dies in it leaves a step that is half done.
        """
        time.sleep(max(0.0, self._began + self._wanted() - time.monotonic()))
        self._began = time.monotonic()

    def __call__(self, step: int) -> None:
        """`step` (counted from 0) is done."""
        if self._journal:
            with self._journal.open("a") as lines:
                lines.write(f"{time.time()} {step + 1}\n")

    def _wanted(self) -> float:
        if self._pace_file and self._pace_file.exists():
            self._seconds = float(self._pace_file.read_text())
        return self._seconds
