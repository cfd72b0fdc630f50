"""DeepSpeed: a session of the engine that `deepspeed.initialize` returns.

engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
session = prepared_session(engine, seed=0)
for step in session.steps(10_000):
    loss = loss_of(engine, batch_of(step))
    engine.backward(loss)
    engine.step()
"""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from deepspeed.runtime.base_optimizer import ZeROOptimizer
from deepspeed.runtime.pipe.module import PipelineModule

from ..checkpoints.stateful_objects import SmallState
from ..session.session import Session
from ..survivors.noted_steps import ExchangesGradients
from ..worker.deepspeed_import import leave_out_extension
from ..worker.worker import this_worker

leave_out_extension()  # also where no training function is called, as in a test

_NEEDLESS = ("loss_scaler", "param_slice_mappings")
"""Of what a ZeRO optimizer returns: objects of DeepSpeed, and what follows from the model."""


def prepared_session(engine: Any, *, seed: int | None = None, **objects: Any) -> Session:
    """A session of what an engine trains: weights, optimizer, learning rates and counters.

    With ZeRO each rank saves its part of the optimizer, and of stage 3 that of the weights, so the
    number of workers may not change. A step of the session is one of the optimizer: where gradients
    are accumulated, its batches are all in it.

    Args:
        engine: as `deepspeed.initialize` has returned it.
        seed: see `Session`.
        objects: further ones, see `Session`.

    Raises:
        ValueError: the engine trains in a way that a session cannot save, or not with another
            number of workers.
    """
    _refuse_other_workers(engine)
    return Session(seed=seed, **kept_objects(engine), **objects)


def kept_objects(engine: Any) -> dict[str, Any]:
    """What a session keeps of an engine, as objects that have a state.

    Raises:
        ValueError: the engine trains in a way that a session cannot save.
    """
    _require_savable(engine)
    found: dict[str, Any] = {}
    if engine.zero_optimization_partition_weights():
        found["buffers"] = _OutsideOptimizer(engine.module)
    else:
        found["model"] = engine.module
    if isinstance(engine.optimizer, ZeROOptimizer):
        found["optimizer"] = _ZeroOptimizer(engine.optimizer)
    elif engine.optimizer is not None:
        found["optimizer"] = engine.optimizer
    if engine.lr_scheduler is not None:
        found["lr_scheduler"] = _Schedule(engine.lr_scheduler)
    return {**found, "engine": _Engine(engine)}


def _refuse_other_workers(engine: Any) -> None:
    worker = this_worker()
    if isinstance(engine.optimizer, ZeROOptimizer) and worker.most_workers is not None:
        raise ValueError(
            "the engine's optimizer is divided among the ranks (ZeRO), and with workers.minimum "
            "their number changes; leave workers.minimum out, set zero_optimization.stage to 0, or "
            "shard the model with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    if worker.keeps_batch:
        raise ValueError(
            "the engine counts the batches of a step of its optimizer by itself, as many with any "
            "number of workers, and workers.globalBatch is keep; set globalBatch to scale, or "
            "train with a Session and a loop over session.microbatches() in PyTorch"
        )


class _ZeroOptimizer:
    """This rank's part of what ZeRO keeps: the weights in 32 bits and the optimizer's state."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        state = self._optimizer.state_dict()
        kept = {name: value for name, value in state.items() if name not in _NEEDLESS}
        scaler = vars(state["loss_scaler"]) if "loss_scaler" in state else {}
        numbers = {n: v for n, v in scaler.items() if isinstance(v, bool | int | float)}
        stage = {"zero_stage": int(kept["zero_stage"])} if "zero_stage" in kept else {}
        return {**kept, **stage, "loss_scaler": numbers}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        optimizer, own = self._optimizer, dict(state)
        numbers = own.pop("loss_scaler")
        if hasattr(optimizer, "loss_scaler"):
            own["loss_scaler"] = optimizer.loss_scaler
            vars(optimizer.loss_scaler).update(numbers)
        if hasattr(optimizer, "checkpoint_event_prologue"):
            optimizer.checkpoint_event_prologue()
        # It takes a list with the parts of all ranks, and reads its own one from it.
        parts: Mapping[int, Any] = defaultdict(lambda: own)
        optimizer.load_state_dict(parts, load_from_fp32_weights=True)
        if hasattr(optimizer, "checkpoint_event_epilogue"):
            optimizer.checkpoint_event_epilogue()


class _OutsideOptimizer:
    """Of a model whose weights ZeRO has partitioned: what its optimizer does not hold."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._buffers = dict(model.named_buffers())
        self._frozen = {
            name: parameter.ds_tensor
            for name, parameter in model.named_parameters()
            if not parameter.requires_grad
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "buffers": dict(self._buffers),
            "frozen": {name: part.data for name, part in self._frozen.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, value in state["buffers"].items():
                self._buffers[name].copy_(value)
            for name, value in state["frozen"].items():
                self._frozen[name].data.copy_(value)


class _Schedule(SmallState):
    """A learning rate scheduler, whose few numbers are noted at the end of each step."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        return dict(self._scheduler.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._scheduler.load_state_dict(dict(state))


class _Engine(SmallState, ExchangesGradients):
    """How far an engine is, and whether it has exchanged the gradients of a step."""

    _NAMES = ("global_steps", "global_samples", "skipped_steps", "micro_steps")

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._exchanged: frozenset[int] = frozenset()
        exchange, no_sync = engine.allreduce_gradients, engine.no_sync

        def noted_exchange(*args: Any, **kwargs: Any) -> None:
            last = engine.is_gradient_accumulation_boundary()
            exchange(*args, **kwargs)
            if last and not engine.is_deepcompile_active():
                trained = (p for p in engine.module.parameters() if p.requires_grad)
                self._exchanged = frozenset(map(id, trained))

        @contextlib.contextmanager
        def noted_no_sync() -> Iterator[None]:
            try:
                with no_sync():
                    yield
            finally:
                self._exchanged = frozenset()

        engine.allreduce_gradients, engine.no_sync = noted_exchange, noted_no_sync

    def take_exchanged(self) -> Collection[int]:
        exchanged, self._exchanged = self._exchanged, frozenset()
        return exchanged

    def state_dict(self) -> dict[str, Any]:
        done = self._engine.micro_steps % self._engine.gradient_accumulation_steps()
        if done:
            raise ValueError(
                f"the session's step has ended after {done} of the engine's "
                f"{self._engine.gradient_accumulation_steps()} gradient_accumulation_steps, and a "
                "checkpoint does not hold their gradients; loop over all of them within the step"
            )
        return {name: getattr(self._engine, name) for name in self._NAMES}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        vars(self._engine).update(state)


def _require_savable(engine: Any) -> None:
    zero = engine.optimizer
    if not isinstance(zero, ZeROOptimizer | torch.optim.Optimizer | None):
        raise ValueError(
            f"the engine's optimizer is a {type(zero).__name__}, which a session cannot save; set "
            "zero_optimization.stage to 1, 2 or 3 in the engine's config, or train in 32 bits"
        )
    refused = {
        "pipeline parallelism": isinstance(engine.module, PipelineModule),
        "layers of experts": engine.has_moe_layers,
        "elastic_checkpoint": bool(getattr(zero, "elastic_checkpoint", False)),
        "an optimizer on NVMe": bool(getattr(zero, "swap_optimizer", False)),
        "weights on NVMe": bool(getattr(zero, "params_in_nvme_and_cpu", False)),
    }
    for found, refuse in refused.items():
        if refuse:
            raise ValueError(
                f"the engine has {found}, which a session cannot save; leave it out of the "
                "engine's config, or leave the session out: save with engine.save_checkpoint and "
                "ray.train.report"
            )
