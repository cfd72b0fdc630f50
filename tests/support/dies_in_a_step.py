"""Training functions that ranks leave without notice, once; with dropout and BatchNorm, or sharded.

Keys of their config: `folder`, where each step of rank 0 and each signal leaves a trace; `seed` of
the session; `steps`; `width` of the hidden layer; `saves`: the step after which a checkpoint is
made; `signals`: {rank: name of the signal that it sends itself}; `norm`; `spoils`:
the rank that loses its optimizer's state then, which is noticed only when that is copied;
`no_time`: a step that rank 1 has no time to note; `no_data`: the rank whose data cannot be read
then, once; `loops`: steps at which loops before the last one end; `dies_in_save`: where rank 1 dies
in a save while rank 0 waits for it there: "compare", before the state is copied, or "report".
"""

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train.torch import prepare_model
from torch import nn

from trainingrun_runtime import Session
from trainingrun_runtime.examples.repeatable import REPEATABLE, seed_everything, weights_sha256
from trainingrun_runtime.survivors.last_step import LastStep
from trainingrun_runtime.worker.step_consensus import StepConsensus

DIES_AT = 12
"""Steps done when the ranks are sent their signals, in the middle of the next one."""


def train(config: dict[str, Any]) -> None:
    """Ends with the digest of the weights."""
    seed_everything(0)
    width = config.get("width", 8)
    norm = [nn.BatchNorm1d(width)] if config.get("norm", True) else []
    layers = [nn.Linear(4, width), *norm, nn.Dropout(0.5), nn.Linear(width, 1)]
    model = prepare_model(nn.Sequential(*layers), parallel_strategy_kwargs=REPEATABLE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4 / width, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    session = Session(
        seed=config.get("seed"), model=model, optimizer=optimizer, scheduler=scheduler
    )
    _steps(config, session, model, optimizer, scheduler)


def train_sharded(config: dict[str, Any]) -> None:
    """As two replicas of two parts (HSDP): ranks 0 and 2 hold the same part, and ranks 1 and 3."""
    # Imported here: it takes 2 s, and the others need none of it.
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    seed_everything(0)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    for module in (model[0], model[2], model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.5)
    session = Session(
        seed=config.get("seed"), model=model, optimizer=optimizer, scheduler=scheduler
    )
    _steps(config, session, model, optimizer, scheduler)


def _steps(
    config: dict[str, Any],
    session: Session,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    rank = ray.train.get_context().get_world_rank()
    if rank == 1 and "no_time" in config:
        # It says so after the step before.
        short = property(lambda _: session.step == config["no_time"] - 1)
        LastStep.no_time = short  # type: ignore[method-assign, assignment]
    ends = (*config.get("loops", ()), config.get("steps", 20))
    for step in itertools.chain.from_iterable(map(session.steps, ends)):
        inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(4 * step + rank))
        loss = model(inputs).square().mean()
        if step == DIES_AT:
            _spoil(rank, config, optimizer)
            _read(rank, config)
            leave(rank, config)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        session.report(loss=loss.item())
        if step == config.get("saves"):
            _die_in_save(rank, config)
            session.save()
        step_done(rank, step, config)
    session.finish(weights_sha256=weights_sha256(model))


def _spoil(rank: int, config: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    mark = Path(config["folder"]) / "spoiled"
    if config.get("spoils") != rank or mark.exists():
        return
    mark.touch()
    optimizer.state.clear()


def _read(rank: int, config: dict[str, Any]) -> None:
    mark = Path(config["folder"]) / "unread"
    if config.get("no_data") != rank or mark.exists():
        return
    mark.touch()
    raise OSError("AWS Error NETWORK_CONNECTION during GetObject operation: Connection refused")


def _die_in_save(rank: int, config: dict[str, Any]) -> None:
    waits, died = (Path(config["folder"]) / name for name in ("waits-in-save", "died-in-save"))
    if "dies_in_save" not in config or died.exists():
        return
    places = {"compare": (StepConsensus, "gather"), "report": (ray.train, "report")}
    owner, name = places[config["dies_in_save"]]
    wait = getattr(owner, name)

    def waiting(*arguments: Any, **keywords: Any) -> Any:
        if rank == 1:
            while not waits.exists():
                time.sleep(0.01)
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        waits.touch()
        return wait(*arguments, **keywords)

    setattr(owner, name, waiting)


def step_done(rank: int, step: int, config: dict[str, Any]) -> None:
    """Write down that rank 0 has done the step; take a while in a run that is disturbed."""
    time.sleep(0.0 if "undisturbed" in config else 0.05)
    if rank == 0:
        with (Path(config["folder"]) / "steps").open("a") as journal:
            journal.write(f"{step}\n")


def leave(rank: int, config: dict[str, Any]) -> None:
    """Send this process the signal that the config has for its rank, once in a run.

    Every rank calls it; a rank leaves once all of them are in the step.
    """
    folder, signals = Path(config["folder"]), config.get("signals", {})
    mine = folder / f"rank-{rank}"
    (folder / f"in-step-{rank}").touch()
    if str(rank) not in signals or mine.exists():
        return
    while len(list(folder.glob("in-step-*"))) < ray.train.get_context().get_world_size():
        time.sleep(0.01)
    time.sleep(0.5)  # the step takes a while
    mine.write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.Signals[signals[str(rank)]])
