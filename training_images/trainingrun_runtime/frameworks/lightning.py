"""Lightning: a callback by which a `Trainer` has a session.

    trainer = Trainer(
        strategy=RayDDPStrategy(), plugins=[RayLightningEnvironment()],
        callbacks=[SessionCallback(seed=0)], enable_checkpointing=False,
    )
    prepare_trainer(trainer).fit(model, loader)

Checkpoints are the session's: `fit` needs no `ckpt_path`, and ModelCheckpoint and Ray's
RayTrainReportCallback are not needed beside it.
"""

import copy
import math
import warnings
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BaseProgress
from lightning.pytorch.utilities.model_helpers import is_overridden

from ..checkpoints.stateful_objects import SmallState
from ..session.session import Session
from ..worker.worker import this_worker
from .driven_loop import (
    ENDLESS,
    DrivenLoop,
    Ended,
    begin_at,
    refuse_other_numbers,
    refuse_other_samples,
    require_repeatable,
    require_usable,
)


class SessionCallback(Callback):
    """Restores the trainer, and makes checkpoints when they are due and on a preemption notice.

    A checkpoint holds the module, the optimizers, the learning rate schedulers, how far the trainer
    is, the states of its callbacks and the models of those that average the weights. A step is one
    of the optimizer: batches whose gradients are accumulated belong to one step. The batches of the
    epoch under way that were trained on are left out of a loader whose order follows from the
    epoch, as of Lightning's distributed sampler. What a validation measures is of its step alone; a
    step of which it measures the metric of `checkpoints.best` is saved.

    Args:
        seed: see `Session`.
    """

    def __init__(self, *, seed: int | None = None) -> None:
        self._seed = seed
        self.session: Session | None = None  # from the begin of the training on
        self._loop: DrivenLoop | None = None  # until its end
        self._before: dict[str, Any] = {}
        """Metrics before the validation under way."""
        self._measured: set[str] = set()
        """Names of those that the latest validation has measured, in the step under way."""
        self._former: dict[str, Any] = {}
        """Those that a validation has measured of former weights; the trainer keeps them."""
        self._advised = False
        self._advised_of_means = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The session's checkpoints are the only ones, and its steps begin before all else does.

        Raises:
            ValueError: the trainer resumes from one of its own, or has a state for those alone.
        """
        if trainer.ckpt_path is not None:
            raise ValueError(
                f"fit(ckpt_path={str(trainer.ckpt_path)!r}) resumes from another checkpoint than "
                "the session's; call fit() without it"
            )
        _refuse_left_out(trainer, pl_module)
        # The former step ends in on_train_batch_start(): what a callback before this one had done
        # there, of the next step, would be in its checkpoint. Lightning is at this one's place in
        # the list, and what follows stays where it is, so each hook is called once.
        callbacks = trainer.callbacks
        callbacks.insert(0, callbacks.pop(callbacks.index(self)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore what was saved, and continue there."""
        loaders = trainer.fit_loop._combined_loader
        for loader in loaders.flattened if loaders is not None else ():
            require_usable(loader)
            require_repeatable(loader)
        refuse_other_numbers("Lightning's loop")
        self.session = session = Session(seed=self._seed, **self._objects(trainer))
        self._former = dict(trainer.callback_metrics)  # those that were restored
        if session.step:
            trainer.fit_loop.setup_data()  # the loaders of this epoch, where each has its own
            _continue_data(trainer, session)
        self._loop = DrivenLoop(session, _epochs(trainer, session), lambda: _steps(trainer))

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """A step begins with the first batch whose gradients it accumulates."""
        if self._loop is None or self.session is None:
            return
        if batch_idx % trainer.accumulate_grad_batches == 0:
            # Metrics on a GPU are waited for, so they are read as rarely as Lightning logs them.
            if pl_module.device.type == "cpu" or batch_idx % trainer.log_every_n_steps == 0:
                self._report(trainer)
            try:
                self._loop.begin_step(trainer.current_epoch)
            except Ended:
                if not self.session.stopped:
                    raise
                trainer.should_stop = True
                raise StopIteration from None  # by which Lightning leaves an epoch
        if self._measured:
            found = trainer.callback_metrics
            self._former |= {name: found[name] for name in self._measured if name in found}
            self._measured = set()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note the metrics that are there before."""
        self._before = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report what was measured, as of the step under way, whose weights these are."""
        if self._loop is None or self.session is None:  # as in `trainer.validate()`
            return
        found = trainer.callback_metrics
        # While it validates, the trainer leaves the values of all other metrics as they are.
        self._measured = {
            name for name, value in found.items() if self._before.get(name) is not value
        }
        if trainer.fit_loop._should_accumulate():
            self._advise(trainer)
            return
        self._report(trainer)
        needed = set(this_worker().needed_metrics)
        # One rank may log a metric alone, and all of them save.
        if needed and trainer.strategy.reduce_boolean_decision(
            not needed.isdisjoint(self._measured), all=False
        ):
            self.session.save()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say once which metrics of a resumed epoch are not those of the whole epoch."""
        # Each rank has sums of its own, from each step on. In a checkpoint they would have to come
        # from every rank, and no rank could save the last step for a lost one.
        if self._loop is None or self._advised_of_means:
            return
        self._advised_of_means = True
        found = [metric.meta for metric in trainer.fit_loop.epoch_loop._results.values()]
        logged = {n for m in found if m.on_epoch for n in (m.name, m.forked_name(on_step=False))}
        for name, decides in _monitored(trainer).items():
            if name in logged:
                this_worker().advise(
                    f"{decides} monitors {name!r}, which is made of what all steps of an epoch "
                    "log, and after a loss within an epoch of the steps since that alone, so the "
                    "run may end with other weights; let it monitor what a validation measures"
                )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """All steps are done."""
        if self._loop is not None:
            self._report(trainer)
            self._loop.end()
            self._loop = None

    def _report(self, trainer: Trainer) -> None:
        metrics = {
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if self._former.get(name) is not value  # else the training has not logged it since
        }
        if self.session is not None and metrics:
            self.session.report(**metrics)

    def _advise(self, trainer: Trainer) -> None:
        """Say once what becomes of a validation within a step."""
        if not self._advised:
            self._advised = True
            this_worker().advise(
                "the trainer validates between batches whose gradients are accumulated, where the "
                "weights are those of the step before, so these metrics are not reported; set "
                "val_check_interval to a multiple of accumulate_grad_batches="
                f"{trainer.accumulate_grad_batches}"
            )

    def _objects(self, trainer: Trainer) -> dict[str, Any]:
        """What a checkpoint holds, by name."""
        found: dict[str, Any] = {"model": trainer.strategy.model, "progress": _Progress(trainer)}
        for index, callback in enumerate(_averages(trainer)):
            found[f"average{index or ''}"] = callback._average_model
        for index, optimizer in enumerate(trainer.strategy.optimizers):
            found[f"optimizer{index or ''}"] = optimizer
        for index, config in enumerate(trainer.lr_scheduler_configs):
            found[f"scheduler{index or ''}"] = config.scheduler
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        return found if scaler is None else {**found, "scaler": scaler}


def _averages(trainer: Trainer) -> list[Any]:
    """The callbacks that average the weights, in a model that their `state_dict` has not."""
    return [callback for callback in trainer.callbacks if isinstance(callback, WeightAveraging)]


def _monitored(trainer: Trainer) -> dict[str, str]:
    """Metrics that decide how the training goes on, and the class that decides by each."""
    decide: list[tuple[Any, Any]] = [
        (callback.monitor, callback)
        for callback in trainer.callbacks
        if isinstance(callback, EarlyStopping)
    ]
    decide += [
        (config.monitor, config.scheduler)
        for config in trainer.lr_scheduler_configs
        if config.reduce_on_plateau
    ]
    return {name: type(thing).__name__ for name, thing in decide}


def _refuse_left_out(trainer: Trainer, module: LightningModule) -> None:
    """Refuse what has a state for Lightning's own checkpoints alone.

    Raises:
        ValueError: with one sentence.
    """
    for callback in trainer.callbacks:
        name = type(callback).__name__
        if isinstance(callback, StochasticWeightAveraging):
            raise ValueError(
                f"the callback {name} makes its schedule of learning rates as an epoch begins, and "
                "a run that is resumed within one would end with other weights; use "
                "lightning.pytorch.callbacks.WeightAveraging in its place"
            )
        if isinstance(callback, WeightAveraging):  # whose own method has the averaged model alone
            if callback._average_model is None:
                raise ValueError(
                    f"the callback {name} has no averaged model as fit() begins, so no checkpoint "
                    "could hold it; call super().setup() in its setup()"
                )
            parent = WeightAveraging
        else:
            parent = Callback
        if is_overridden("on_save_checkpoint", callback, parent):
            raise ValueError(
                f"the callback {name} saves by on_save_checkpoint(), which a session does not "
                "call, so a resumed run would go on without that; return it from the callback's "
                "state_dict(), or leave the callback out"
            )
    if is_overridden("on_save_checkpoint", module):
        raise ValueError(
            f"the module {type(module).__name__} saves by on_save_checkpoint(), which a session "
            "does not call, so a resumed run would go on without that; keep it in a buffer "
            "(register_buffer) or in the state_dict() of a callback, and leave the method out"
        )
    if is_overridden("state_dict", trainer.datamodule):
        raise ValueError(
            f"the datamodule {type(trainer.datamodule).__name__} has a state_dict(), which a "
            "session does not save, so a resumed run would go on without it; keep it in the "
            "state_dict() of a callback, and leave the method out"
        )


class _Progress(SmallState):
    """How far a trainer is in its epochs and batches, and what decides how it goes on.

    The latter are the states of its callbacks, whether it is to stop, and the metrics that are
    monitored: a decision may come before the next validation measures them again.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        loops = _loops(self._trainer.fit_loop)
        epoch, batches = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
        if batches["current"]["ready"] > batches["current"]["started"]:
            # Asked where a step begins: its batch is fetched, and belongs to no finished step.
            batches["is_last_batch"] = False
            for counts in (batches["total"], batches["current"]):
                counts["ready"] = counts["started"]
            if not batches["current"]["started"]:  # nor has its epoch begun
                # Where session.stop() has ended the training there, Lightning counts it as done.
                over = epoch["current"]["processed"] == epoch["current"]["ready"]
                counted = over and not batches["current"]["processed"]
                for counts in (epoch["total"], epoch["current"]):
                    counts |= dict.fromkeys(counts, counts["completed"] - counted)
        if self._ended_within_epoch(epoch["current"], batches):
            # Lightning counts that epoch as done; a run that begins here goes on in it.
            for counts in (epoch["total"], epoch["current"]):
                counts["processed"] -= 1
                counts["completed"] = counts["processed"]
        states = [(callback, callback.state_dict()) for callback in self._callbacks()]
        callbacks = {c.state_key: copy.deepcopy(state) for c, state in states if state}
        # Not the property, which exchanges metrics between the ranks, and all have to read it then.
        known = self._trainer._logger_connector._callback_metrics
        metrics = {n: known[n].detach().clone() for n in _monitored(self._trainer) if n in known}
        should_stop = bool(self._trainer.should_stop)
        return {
            "loops": loops,
            "callbacks": callbacks,
            "metrics": metrics,
            "should_stop": should_stop,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        loop: Any = self._trainer.fit_loop
        loop.load_state_dict(state["loops"])
        epoch = loop.epoch_progress
        within = epoch.current.ready != epoch.current.processed
        if within:
            # As of an epoch that begins, for which Lightning calls on_train_epoch_start(): where it
            # is left out, a GradientAccumulationScheduler leaves the batches of a step at 1.
            for counts in (epoch.total, epoch.current):
                counts.started = counts.processed
            _resume_after_batch(loop.epoch_loop)
        else:  # the next epoch has all of its batches
            loop.epoch_loop.batch_progress.reset_on_run()
            loop.epoch_loop.restarting = False
        loop.update_restart_stage()
        # While it is set, the epoch's end leaves ReduceLROnPlateau out. The property `restarting`
        # would set it where there are `max_steps`.
        loop._restarting = False
        # Another run's end was its own: a run that begins there trains on.
        if state.get("should_stop") and this_worker().continues is not None:
            self._trainer.should_stop = True
        self._trainer._logger_connector._callback_metrics.update(state.get("metrics", {}))
        for callback in self._callbacks():
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])

    def _ended_within_epoch(self, epoch: Any, batches: Any) -> bool:
        """Whether the training has ended before its epoch, as by `max_steps`."""
        over = epoch["processed"] == epoch["ready"] and not batches["is_last_batch"]
        done = batches["current"]["completed"]
        return bool(over and 0 < done < self._trainer.num_training_batches)

    def _callbacks(self) -> list[Callback]:
        # A ModelCheckpoint names files of its pod, which are gone with it.
        return [c for c in self._trainer.callbacks if not isinstance(c, ModelCheckpoint)]


def _resume_after_batch(epoch_loop: Any) -> None:
    """Have it go on after a batch whose validation, if it has one, is over.

    Lightning's own checkpoints are made in a validation. So it would end that batch once more: it
    would update ReduceLROnPlateau a second time, or fail where the metric is not measured yet.
    """

    def reset() -> None:
        del epoch_loop.reset
        epoch_loop.reset()  # which would begin with batch 0, were it not restarting
        epoch_loop._restarting = False

    epoch_loop.reset = reset


def _loops(fit_loop: Any) -> dict[str, Any]:
    """What the loop's own `state_dict()` returns, without the states of the loaders.

    That one copies each number by `deepcopy`, which takes too long for each step's end; and the
    loaders' own states count the batch that was just fetched.
    """
    found: dict[str, Any] = {"state_dict": {}}

    def add(loop: Any, prefix: str) -> None:
        for name, value in vars(loop).items():
            if isinstance(value, _BaseProgress):
                found[prefix + name] = _numbers(value)
            elif isinstance(value, _Loop):
                found[f"{prefix}{name}.state_dict"] = value.on_save_checkpoint()
                add(value, f"{prefix}{name}.")

    add(fit_loop, "")
    return found


def _numbers(progress: Any) -> dict[str, Any]:
    return {
        name: _numbers(value) if isinstance(value, _BaseProgress) else value
        for name, value in vars(progress).items()
    }


def _continue_data(trainer: Trainer, session: Session) -> None:
    """Have the training data begin where the restored trainer is.

    Raises:
        ValueError: other batches than those that were trained on would be left out.
    """
    loop = trainer.fit_loop
    loaders, fetcher = loop._combined_loader, loop._data_fetcher
    batches = loop.epoch_loop.batch_progress.current.completed
    refuse_other_samples(session, batches, "Lightning's loop")
    if loaders is None or fetcher is None:
        return
    # It tells about loaders that begin anew, which these do not.
    warnings.filterwarnings("ignore", ".*ended before the epoch ended and your dataloader is.*")
    # Several end, and begin anew, by the rules of their mode, which only drawing from all follows.
    several = len(loaders.flattened) > 1
    left_out = 0 if several else batches
    skipped = [begin_at(each, trainer.current_epoch, left_out) for each in loaders.flattened]
    iter(fetcher)
    if several or not all(skipped):
        for _ in range(batches):
            next(fetcher.iterator)


def _epochs(trainer: Trainer, session: Session) -> int:
    """Epochs of the whole training, as far as it is known."""
    limit = ENDLESS if trainer.max_epochs in (None, -1) else int(trainer.max_epochs)
    # Loaders that are made anew may be longer or shorter than that of now, and so may the steps be.
    changes = trainer.reload_dataloaders_every_n_epochs or any(
        isinstance(callback, GradientAccumulationScheduler) for callback in trainer.callbacks
    )
    if trainer.max_steps == -1 or changes:
        return limit
    # Those that are over may have had other steps, in the run of the checkpoint.
    first, done = int(trainer.current_epoch), session.step
    if session.epoch == first:
        done -= session.steps_of_epoch
    return min(limit, first + -(-(int(trainer.max_steps) - done) // _steps(trainer)))


def _steps(trainer: Trainer) -> int:
    """Steps of an epoch; a ValueError where the data has no length."""
    if math.isinf(trainer.num_training_batches):
        raise ValueError(
            "the training data has no length, so the trainer's epochs have no end; set "
            "Trainer(limit_train_batches=...) to the batches of an epoch"
        )
    return -(-int(trainer.num_training_batches) // int(trainer.accumulate_grad_batches))
