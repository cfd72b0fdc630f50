"""The session: checkpoints, restore and preemption for a training loop.

session = Session(model=model, optimizer=optimizer, loader=loader)
for epoch in session.epochs(10):
    for batch in session.batches(loader):
        loss = ...
        session.report(loss=loss.item())
    session.report(accuracy=evaluate(model))
session.finish(accuracy=0.97)

After the function has returned, the session saves the final state: a run is done once the
checkpoint of its last step is.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

import ray
import torch.distributed as dist

from ..checkpoints import snapshot
from ..checkpoints.gradients import AccumulatedGradients
from ..data.drawn_batches import DrawnBatches
from ..data.kept_batch import use_microbatches
from ..data.position import ResumableLoader
from ..progress.rank_reporter import ReportRecorder, TimesReporter
from ..progress.time_accounting import StepReport
from ..random_numbers import StepRandom, first_of_group
from ..store.reported_metrics import printable_metrics
from ..survivors.noted_steps import GradientExchange, NotedSteps, parallel
from ..worker.step_consensus import Place, StepConsensus, StepValues
from ..worker.worker import this_worker
from . import microbatches
from .loop_totals import LoopTotals, StepLoop, whole_number
from .optimizer_advice import OptimizerAdvice
from .requests import Requests
from .saving import Saving
from .session_context import Loops, ProgressState, SavedObjects, SessionContext
from .step_reporter import StepReporter

T = TypeVar("T")


class Session:
    """Restores what it is given, counts the steps, and makes checkpoints when they are due.

    Args:
        seed: every step then draws its random numbers (PyTorch's, NumPy's and Python's) from the
            seed, the step and the rank; ranks that share a matrix by tensor parallelism draw the
            same ones. What is drawn outside of the steps, such as a split of the data, is the same
            on every rank. When a rank dies without notice, the other ranks of a replicated training
            can then save the last finished step, and no step is lost. Without a seed the run
            goes back to its last checkpoint.
        objects: everything to be restored, by name: whatever has `state_dict` and
            `load_state_dict`, and generators of random numbers. A model wrapped for data
            parallelism is saved without its wrapper. What differs from rank to rank, such as
            torchdata's StatefulDataLoader, is saved for each of them; then the number of workers
            may not change. Of a model made of DTensors (FSDP2, tensor parallelism) and its
            optimizer each rank saves its parts; the number of workers and the mesh may change.

    Raises:
        RuntimeError: not on a worker of a TrainingRun, or it has a session already, or several
            ranks are not connected by torch.distributed.
        NotRestorable, NotSavable: one of the objects cannot be saved whole, or not restored; or
            not with another number of workers, where workers.minimum lets that change.
        ValueError: the checkpoint holds no state of one of the objects.
    """

    def __init__(self, *, seed: Any = None, **objects: Any) -> None:
        if seed is not None and not isinstance(seed, Integral):  # an object of that name
            objects["seed"], seed = seed, None
        worker, saved = this_worker(), SavedObjects(objects)
        _require_connected(worker.world_size)
        worker.times["session"] = time.time()
        self._random = StepRandom(seed, first_of_group(objects.values(), worker.rank))
        self.noted_steps = NotedSteps(
            seeded=self._random.seeded,
            world_size=worker.world_size,
            exchange=GradientExchange(objects),
        )
        """The state after the last step, for a rank that is lost."""
        self._parallel = [m for thing in objects.values() if (m := parallel(thing)) is not None]
        if worker.most_workers is not None:
            saved.refuse_one_number_of_ranks()
        if worker.keeps_batch:
            saved.require_microbatches(worker.rank)
        worker.register(self)
        consensus = StepConsensus(worker.timeout_s)
        seeded = [f"seed={seed}"] if self._random.seeded else []
        consensus.compare_names([*objects, *seeded])
        snapshot.try_out(saved.states())  # what cannot be saved is refused now
        known = worker.continues.metrics if worker.continues is not None else {}
        # A checkpoint has rank 0's.
        self._progress = ProgressState(saved.restore(worker), known if worker.rank == 0 else {})
        worker.times["restored"] = time.time()
        # In every attempt alike: what is drawn before the first loop, such as a split of the data.
        self._random.begin("session", 0, 0)
        self._rated_by = worker.trial.metric if worker.trial else None
        self._rate(known)
        self.reports = ReportRecorder(worker.coordinator, worker.rank, worker.group)
        """What this rank has reported."""
        reporter = None
        if worker.rank == 0:
            reporter = StepReporter(
                worker.coordinator,
                self.reports,
                self._rated_by,
                # A framework's evaluation is between two calls of its hooks, so in a step.
                lambda: self._progress.loops.in_step and not self.noted_steps.driven,
            )
        self._context = SessionContext(
            worker,
            saved,
            consensus,
            self._progress,
            AccumulatedGradients(saved.optimizers().values()),
            self.noted_steps,
            self.reports,
            reporter,
        )
        self._saving = Saving(self._context)
        self._requests = Requests(self._context, self._saving)
        self._data = DrawnBatches(saved.objects)
        self._times_reporter = TimesReporter(
            worker.coordinator, worker.rank, worker.group, objects.values()
        )
        self._final_metrics: dict[str, Any] = {}
        self._epochs: int | None = None
        self._loop_totals = LoopTotals()
        # Ends of the loops that were left, by this process or by the run that it resumes.
        self._left: tuple[int, ...] = ()
        self._total: int | None = None
        self._save_after: str | None = None
        self._begun = self._step_began = 0.0
        OptimizerAdvice(saved.objects, lambda: self.step if self._begun else None, worker.advise)
        self._between_since: float | None = None
        self._lengths: deque[float] = deque(maxlen=100)

    @property
    def step(self) -> int:
        """Steps done; a loop goes on from here."""
        return self._progress.step

    @property
    def epoch(self) -> int:
        """Epochs done, or the number of the one under way; see `epochs`."""
        return self._progress.epoch

    @property
    def stopped(self) -> bool:
        """Whether the ranks agreed to end: loops do no more steps."""
        return self._progress.stopped

    @property
    def steps_of_epoch(self) -> int:
        """Steps of the epoch under way that are done."""
        return self.step - self._progress.epoch_began

    @property
    def world_changed(self) -> tuple[int, int] | None:
        """How many ranks had made the checkpoint that was restored, and how many there are.

        None: as many, or none was restored. With as many samples per rank and step as before, the
        optimizer's batch has changed by as much, for a rule of learning rates. With
        `workers.globalBatch: keep` it has not, and this is None.
        """
        if self._context.worker.keeps_batch:
            return None
        fetched, now = self._context.worker.fetched, self._context.worker.world_size
        before = fetched.manifest.world_size if fetched is not None else now
        return (before, now) if before != now else None

    def report(self, **metrics: float) -> None:
        """Metrics of this step; rank 0's are shown, and kept with the step's checkpoint.

        A later checkpoint has them too, but for the metric of `checkpoints.best`: that of former
        weights would be taken for its own.

        Rank 0's are in the run's table too, see `trainingrun_runtime.results`.
        Between two loops, as after an evaluation, they are of the last step: its checkpoint gets
        them too where it was made before, without another upload.
        """
        progress, new = self._progress, self._printable(metrics)
        done = self.step + progress.loops.in_step
        progress.report(done, new)
        self._rate(new)
        self.reports.record(done, new)
        if self._context.reporter is not None:
            self._context.reporter.rate(done, new)
        self._add_to_checkpoint(progress.metrics)

    def finish(self, **metrics: Any) -> None:
        """Final metrics, on top of the last reported ones; rank 0's become the run's result.

        The last checkpoint has them as well.
        """
        self._final_metrics = self._printable({**self._final_metrics, **metrics})

    def save(self) -> None:
        """Make a checkpoint; every rank calls it at the same place.

        In a loop over `steps()` it is made at the end of the step, else within `epochs()` at the
        end of the epoch, so that a resumed run does no half of either again (not where `break`
        leaves the epoch: call it after the loop then); outside both at once;
        where gradients wait for a later step of their optimizer, after that one.
        Files are uploaded in the background; while a former checkpoint still is, the new one is
        made once that is done.
        """
        if self._progress.loops.inside:
            self._save_after = "step"
        elif self._epochs is not None:
            self._save_after = "epoch"
        else:
            self._leave_loop()
            self._save_between()

    def stop(self) -> None:
        """End the training, as early stopping does; one rank is enough, all of them end alike.

        Called in a loop, it ends after the next step; called between loops, the next one does no
        step. Later loops do none.
        """
        self._requests.stop()

    def note_computed(self) -> None:
        """What is left of the step under way changes nothing that a checkpoint holds.

        Called before what may wait for a rank that is lost meanwhile, such as an exchange of logs:
        this rank can then save the step, though its end is not reached.
        """
        progress = self._progress
        if progress.loops.in_step:
            position = replace(progress.position, step=progress.step + 1)
            under_way = self._context.consensus.under_way()
            self.noted_steps.look(step_s=0.0)  # the step's seconds count at its end
            metrics = self._context.metrics_after(position.step)
            self.noted_steps.note(position, metrics, under_way, compared=False)

    def allow_pause(self, seconds: float) -> None:
        """For so many seconds it is no hang that no rank does a step; one rank is enough.

        Call it before an evaluation, a download or a compilation that may take longer than
        `failures.hang.afterSeconds`.

        Args:
            seconds: from now on.
        """
        self._context.worker.allow_pause(seconds)

    def epochs(self, total: int) -> Iterator[int]:
        """The numbers of the epochs still to be done, from the restored one to `total` - 1.

        Within an epoch `steps(n)` counts from the epoch's first step. A resumed run goes on in the
        epoch that was under way; what comes after its steps, such as an evaluation, is done again.
        After `stop()` the epoch under way is the last one; the first one has the steps before it.

        Raises:
            ValueError: the same total was reached before: it is not counted from the first epoch.
                Or it is no whole number.
        """
        self._requests.raise_exit()
        self._leave_loop()
        total = whole_number(total, "epochs")
        self._loop_totals.require_more_epochs(total, self.epoch, stopped=self.stopped)
        self._epochs, trains, before = total, self.epoch < total, self._left
        try:
            while self.epoch < total and not self._stopped_before_epoch():
                # Also where the epoch was begun before: its body draws the same order again.
                self._random.begin("epoch", self._progress.epoch_began, self.epoch)
                yield self.epoch
                self._end_epoch(before)
                if self._save_after is not None:
                    self._save_after = None
                    self._save_between()
                self._pause(Place.EPOCH, self.step)
            if self.epoch >= total:
                self._loop_totals.reach_epochs(total, trained=trains)
            # By what a resumed run knows too that is in later epochs.
            self._random.begin("after epochs", 0, total)
        finally:
            self._epochs, self._left = None, before
            if self._save_after == "epoch":
                self._save_after = None

    def steps(self, total: int) -> Iterator[int]:
        """The numbers of the steps still to be done, from the restored one to `total` - 1.

        After each step the session checks whether a checkpoint is due. A step in which the loop is
        left (`break`) counts as done. All ranks leave it at the same step, or call `stop()`.

        Args:
            total: steps since the run's first one; within `epochs()`, since the epoch's first one.

        Raises:
            Preempted, Resized, Suspended: a checkpoint was made and this worker group ends; let it
                through.
            ValueError: the same total was reached before: it is not counted from the first step.
                Or it is no whole number.
        """
        return self._steps(total)

    def steps_of(self, loader: Any, length: int, call: str) -> Iterator[int]:
        """As `steps(length)`, for an adapter whose loader the session does not restore: a step for
        each of its batches.

        Args:
            loader: the one.
            length: its batches.
            call: function of the adapter that was called with the session and the loader.

        Raises:
            ValueError: as of `steps`, or another loop before it has done some of these steps.
        """
        return self._steps(length, loader, call, of_adapter=True)

    def _steps(
        self,
        given: int | None,
        loader: Any = None,
        method: str = "steps",
        *,
        of_adapter: bool = False,
    ) -> Iterator[int]:
        """See `steps`.

        Args:
            given: the total; None: as many as the loader has.
            loader: whose batches the steps take, if they take those of one.
            method: the one that was called, for an error.
            of_adapter: whether it is a function of an adapter, for all batches of its loader.
        """
        self._requests.raise_exit()
        self._leave_loop()
        progress = self._progress
        in_epoch, left_out = self._epochs is not None, given is None and loader is not None
        began = progress.epoch_began if in_epoch else 0
        total = self._length(loader) if left_out else whole_number(given, "steps")
        whole = left_out or of_adapter
        loop = StepLoop(method, total, began, in_epoch, loader, whole, not of_adapter)
        end = loop.end
        again = progress.loops.already_reached(end)
        self._loop_totals.begin(loop, self.step, stopped=self.stopped, again=again)
        self._total = self._whole(total)
        self._begun = self._begun or time.time()
        self._context.worker.times.setdefault("looped", self._begun)
        if progress.loops.was_left(end):
            self._after_left(end, in_epoch)
            return
        loops = progress.loops
        number = loops.begin(end)
        self._requests.agree(Place.BEGIN)
        self._between_ends()
        try:
            while self.step < end and not self.stopped:
                self._requests.wait_for_trials()
                progress.loops.in_step, self._step_began = True, time.monotonic()
                self._random.begin_step(self.step, self.epoch)
                self._data.step_begins()
                self._context.gradients.step_begins()
                yield self.step
                if progress.loops is not loops or loops.number != number:
                    raise RuntimeError(
                        "a loop over session.steps() goes on after another one has begun; let one "
                        "end before the next begins"
                    )
                self._step_done()
        except GeneratorExit:  # `break`, or an exception in the loop's body
            if progress.loops is loops and loops.number == number and loops.inside:
                loops.inside = False
                self._after_left(end, in_epoch)
            raise
        self._leave_loop()

    def batches(self, loader: Iterable[T], total: int | None = None) -> Iterator[T]:
        """The batches of a loader, in each step one: as `steps()`, with what is to be trained on.

        Args:
            loader: one of the session's objects: a `ResumableDataLoader`, a
                `ResumableRayDataLoader`, or one that has a state.
            total: see `steps()`; the loader begins anew after its last batch. None: all batches of
                the loader; a resumable one then has the epochs of `epochs()`. Before it, no other
                loop is in the epoch, or without epochs in the run.

        Raises:
            ValueError: the session does not restore the loader, or it has no batch; or
                `workers.globalBatch` is keep. Or total is None, and there was another loop before
                it, whose steps count.
        """
        if self._context.worker.keeps_batch:
            raise ValueError(use_microbatches("this loop takes one batch in each step"))
        batches, draws = self._data.repeated(loader), not isinstance(loader, ResumableLoader)
        for step in self._steps(total, loader, "batches"):
            batch = next(batches)
            if draws:
                # A loader of PyTorch's draws numbers when it begins to iterate, and so it does in
                # the first step of a resumed run: that step's dropout would be another one.
                self._random.begin_step(step, self.epoch)
            yield batch

    def microbatches(
        self, loader: ResumableLoader, total: int | None = None
    ) -> Iterator[Iterator[tuple[Any, float]]]:
        """In each step the microbatches of one step of the optimizer, each with its weight.

            for microbatches in session.microbatches(loader):
                for batch, weight in microbatches:
                    (loss_of(model, batch) * weight).backward()
                optimizer.step()
                optimizer.zero_grad()

        A rank has one in each step, and with `workers.globalBatch: keep` more of them while fewer
        workers train; with `batch_size=1` some of these repeat a sample, with a weight of 0. A loss
        that is a mean over its microbatch's samples, times its weight, makes the gradients those of
        the mean over all samples of the step, once the ranks' gradients are averaged. A
        `DistributedDataParallel` among the session's objects exchanges them with the last
        microbatch alone.

        Args:
            loader: a `ResumableDataLoader` or a `ResumableRayDataLoader`, one of the session's
                objects.
            total: see `batches()`.

        Raises:
            TypeError: it is another loader.
            ValueError: the session does not restore it, or it has no batch; or see `batches()`.
            RuntimeError: a step ends before all of its microbatches are taken.
        """
        drawn = self._data.microbatches(loader)
        for _ in self._steps(total, loader, "microbatches"):
            yield microbatches.of_step(drawn, self._parallel, self._begin_microbatch(loader))

    def _begin_microbatch(self, loader: ResumableLoader) -> Callable[[int], None]:
        """Has one draw the random numbers of the rank that takes it with all workers, if any."""
        dealing = loader.dealing
        sharing = self._context.worker.world_size // dealing.ranks  # ranks with the same samples

        def begin(place: int) -> None:
            if dealing.whole > dealing.ranks or dealing.ones:
                self._random.begin_step(self.step, self.epoch, place * sharing)

        return begin

    def timed(self, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time until each is there counts as waiting for data.

        For loops over `steps()` that draw their own batches; `batches()` measures it by itself.
        """
        return self._data.timed(items)

    def conclude(self) -> None:
        """The training function has returned: save the state in which it did.

        Always: whether something has changed it since the last checkpoint cannot be known.

        Raises:
            Preempted, Resized, Suspended: the function did not let it through.
        """
        self._requests.raise_exit()
        if self._progress.loops.in_step:
            # Left by `break`. Only the final checkpoint has it, and with it what followed the loop.
            self._progress.loops.leave()
            self._end_step()
            self._requests.agree(Place.END)
        self._requests.agree(Place.DONE)
        progress = self._progress
        result = self._printable({**progress.metrics, **self._final_metrics})
        last = {**self._context.metrics_after(self.step), **self._final_metrics}
        progress.metrics, progress.metrics_step = self._printable(last), self.step
        with self._stopped():
            self._saving.save(wait=True)
            self._saving.wait_for_commit()
        if progress.productive:  # else this group did no step, and has none to report
            self._report_step()
        if self._context.reporter is not None:
            self._context.reporter.close()
            ray.get(self._context.worker.coordinator.finished.remote(result))

    def _printable(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        return printable_metrics(metrics, self._context.worker.needed_metrics)

    def _rate(self, metrics: Mapping[str, Any]) -> None:
        """Remember the metric by which trials of a sweep are compared."""
        if self._rated_by is not None and self._rated_by in metrics:
            self._progress.rating = {self._rated_by: metrics[self._rated_by]}

    def _add_to_checkpoint(self, metrics: dict[str, Any]) -> None:
        """Rank 0: add metrics to the checkpoint of the last step, if there is one."""
        saved, in_step = self._saving.saved, self._progress.loops.in_step
        if (
            self._context.reporter is not None
            and saved is not None
            and saved.step == self.step
            and not in_step
        ):
            self._context.reporter.measured(self.step, metrics)

    def _length(self, loader: Any) -> int:
        """Steps of a loader, of the epoch under way where it has epochs."""
        if self._epochs is not None and isinstance(loader, ResumableLoader):
            loader.set_epoch(self.epoch)
        return len(loader)

    def _whole(self, total: int) -> int:
        """Steps of the whole run, as far as it is known."""
        if self._epochs is None:
            return total
        return self._progress.epoch_began + (self._epochs - self.epoch) * total

    def _stopped_before_epoch(self) -> bool:
        """Whether the epoch that is next, or under way, does no step."""
        stop_at = self._progress.stop_at
        return stop_at is not None and stop_at <= self._progress.epoch_began

    def _end_epoch(self, left: tuple[int, ...]) -> None:
        """The body of an epoch has come to its end.

        Args:
            left: ends of the loops that were left before the epochs.
        """
        progress = self._progress
        # First: a step that `break` has left ends only here, so what saves it has the whole body.
        progress.epoch += 1
        progress.epoch_began = self.step + progress.loops.in_step
        self._leave_loop(left)
        progress.loops, self._left = Loops(), left
        progress.loops.left = left  # which none of the next epoch's loops is
        self._loop_totals.end_epoch(self.step)

    def _after_left(self, end: int, in_epoch: bool) -> None:
        """What follows a loop that was left draws the same also where a resumed run passes it."""
        epoch = self.epoch if in_epoch else 0
        self._random.begin("after a left loop", end, epoch, self._left.count(end))
        self._left = (*self._left, end)

    def _leave_loop(self, left: tuple[int, ...] | None = None) -> None:
        """The loop under way ends here, also where it was left in the middle of a step.

        Args:
            left: where the epoch ends with it: those that were left before the epochs.
        """
        loops = self._progress.loops
        was_left = loops.in_step
        if was_left:
            loops.leave()
            if loops.inside:  # the code has kept the iterator, which does not know of it
                self._after_left(loops.left[-1], self._epochs is not None)
            if left is not None:
                loops.left = left
            self._step_done()
        end = loops.end()
        if end is None:
            return
        if self.step >= end:
            loops.reached(end)
        # A resumed run passes the ends of the loops that were over before its checkpoint.
        step = min(self.step, end)
        if not was_left:
            # It passes what came before its epochs, too, when it is in one of them.
            epoch = self.epoch if self._epochs is not None else 0
            self._random.begin("between steps", step, epoch)
        self._pause(Place.END, step)

    def _end_step(self) -> StepValues:
        """The step under way is over; what the ranks agreed on in the former one."""
        progress, saving = self._progress, self._saving
        progress.loops.in_step = False
        self._data.step_done()
        self._context.gradients.step_done()
        progress.step += 1
        step_s = time.monotonic() - self._step_began
        if not self._context.worker.times_are_told:
            self._context.worker.tell_times(stepped=time.time())
        progress.productive += step_s
        self._lengths.append(step_s)
        saving.interval.cost.stepped(step_s, saving.uploading)
        self._report_step()
        started = time.monotonic()
        saving.try_out()
        left_out = self._context.consensus.agreed().no_time
        state = self.noted_steps.look(step_s, left_out)
        agreed = self._requests.after_step(state)
        progress.stalled += time.monotonic() - started
        return agreed

    def _step_done(self) -> None:
        agreed, progress, saving = self._end_step(), self._progress, self._saving
        started = time.monotonic()
        # Before a checkpoint, which takes longer and may be cut off.
        under_way = progress.noted(self._context.consensus.under_way())
        metrics = self._context.metrics_after(self.step)
        self.noted_steps.note(progress.position, metrics, under_way)
        save = saving.interval.is_due_after(self.step)
        if self._save_after == "step":
            self._save_after, save = None, True
        if save:
            self._requests.save()  # after the exchange: `stop()` in the same step is saved too
        self._requests.execute(agreed)
        progress.stalled += time.monotonic() - started

    def _report_step(self) -> None:
        progress = self._progress
        waited = self._data.waited(progress.productive)
        self._times_reporter.report(progress.step, progress.productive, waited)
        if self._context.reporter is None:
            return
        self._context.reporter.report(
            StepReport(
                group=self._context.worker.group,
                step=progress.step,
                total=self._total,
                begun=self._begun,
                done=time.time(),
                productive=progress.productive + progress.between,
                checkpoint=progress.stalled,
                metrics=progress.metrics,
                longest_s=max(self._lengths),
                interval=every_s if math.isfinite(every_s := self._saving.due_s()) else None,
            )
        )

    def _pause(self, place: Place, step: int) -> None:
        """Between two loops or epochs, after a step: what follows may take long."""
        progress = self._progress
        with self._stopped():
            agreed = self._requests.agree(place)
            # A loop that a resumed run passes was over before the request to stop, which is of a
            # later one: that does its last step.
            if progress.stop_at is not None and step == self.step:
                progress.stop_at = min(progress.stop_at, self.step)
            # A stop before the first step of an epoch looks like one before the epoch, whose body a
            # resumed run would leave out: what is due there is done after the epoch.
            in_epoch = place is Place.END and self._epochs is not None
            if not (in_epoch and self._stopped_before_epoch()):
                self._requests.execute(agreed)

    def _save_between(self) -> None:
        """Save between two steps, outside of a loop."""
        with self._stopped():
            self._requests.save()

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        """Training is stopped between two steps; what follows, until the next one, is training."""
        self._between_ends()
        started = time.monotonic()
        yield
        self._between_since = time.monotonic()
        self._progress.stalled += self._between_since - started

    def _between_ends(self) -> None:
        if self._between_since is not None:
            self._progress.between += time.monotonic() - self._between_since
            self._between_since = None


def _require_connected(world_size: int) -> None:
    """Make sure that the ranks can agree."""
    if world_size > 1 and not dist.is_initialized():
        raise RuntimeError(
            f"a Session of {world_size} ranks needs torch.distributed, which does not connect them "
            "yet; before the Session is made, call connect() of "
            "trainingrun_runtime.frameworks.jax or of trainingrun_runtime.frameworks.tensorflow, "
            "or torch.distributed.init_process_group(), as a TorchTrainer does by itself"
        )
