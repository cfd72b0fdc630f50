"""A local run from start to end: the loop that does what the operator does on a cluster."""

import contextlib
import importlib.util
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console

from trainingrun_protocol.contract import CONFIG_ENV, RunContract
from trainingrun_protocol.failure_rules import ContractRule
from trainingrun_protocol.progress import Failure, Progress, RunState

from ..api.status import Phase
from ..api.v1alpha1 import TrainingRun
from ..rendering import RenderSettings, contract, environments
from ..rendering.contracts import code_source
from . import machine, user_module
from .attempts import (
    Driver,
    FailedAttempt,
    GiveUp,
    Retry,
    Standing,
    Tally,
    after_failure,
    after_loss,
    failed,
    outcome,
)
from .display import Display, beyond_memory, summary
from .folder import Folder
from .interruptions import Interruptions, TrialLosses, unsaved
from .machine import LocalError
from .ray_nodes import LocalRay, Preemption
from .run_line import options
from .starting import Wait, wait_of
from .terminal_text import cell

_POLL_S = 0.2
_SUSPEND_S = 75.0
"""How long Ctrl-C waits for a checkpoint; a second one does not wait. Scripts of torchrun have 60 s
for their end, and what they have written is uploaded after it."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says beside the file."""

    folder: Path | None = None
    """Takes the bucket's place; default: `trainingrun-local/<name>`."""
    preempt_after_s: float | None = None
    """Seconds after the first step at which a node is preempted; None: never."""
    resume: bool = False
    """Resume the latest run of this name in the folder."""
    beside: Path | None = None
    """Folder of the run's file, from which modules are imported too; None: it has none."""


def run_locally(
    run: TrainingRun,
    config_maps: Mapping[str, Mapping[str, str]],
    options: Options,
    console: Console,
) -> bool:
    """Train here, and show it; whether the run succeeded.

    Raises:
        LocalError: The run cannot be trained on this machine.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; everything is cleaned up, and the run can be
            resumed.
    """
    began = time.monotonic()
    for module in ("ray", "torch", "trainingrun_runtime"):
        if importlib.util.find_spec(module) is None:
            raise LocalError(
                f"{module} is not installed here; install trainingrun[runtime] to train locally"
            )
    if run.spec.suspend:
        raise LocalError("spec.suspend is true; set it to false to train")
    devices = machine.devices(run.spec)
    variables = machine.variables(run.spec)
    found = machine.search_paths(None, variables, beside=options.beside)
    where = user_module.locate(run, found["PYTHONPATH"].split(os.pathsep))
    folder = Folder.prepare(run, options.folder, options.resume)
    with _terminable(), contextlib.ExitStack() as at_end:
        try:
            script = folder.write_script(config_maps)
            user_module.check_script(script)
            rendered = contract(folder.run, folder.first_attempt, RenderSettings())
            base = rendered.model_copy(
                update={
                    **_with_script(rendered, script),
                    "rules": _on_one_machine(folder.run.spec.failures.contract_rules),
                    "restore_from": folder.restore_from(run.spec.storage),
                    # The folder takes the place of the bucket for checkpoints, not for the code.
                    "code": code_source(run),
                    "image": None,
                }
            )
            tracking = environments.tracking(folder.run)
            variables = machine.variables(run.spec, before={**tracking, **base.identity()})
            environment = {
                **tracking,
                **variables,
                **base.identity(),
                **machine.search_paths(script, variables, beside=options.beside),
                CONFIG_ENV: json.dumps(run.spec.training.config),
            }
            record = at_end.enter_context(folder.record)
            folder.begin()
        except LocalError:
            if not options.resume:
                at_end.close()  # else the lock, which is in the folder, stays open
                folder.discard()
            raise
        workers = run.spec.workers
        with _ray_starts():
            ray = LocalRay(
                folder.logs,
                environment,
                base.resources_per_worker,
                devices,
                workers_per_node=workers.per_pod,
                data_cpus=workers.resources.data_cpus,
                uploads_output=True,
            )
        with ray:
            with Display(console, run.metadata.name) as display:
                for sentence in filter(None, (where, folder.begins)):
                    display.note(sentence)
                display.show(record.run, Wait("Ray's nodes", 0, folder.run.spec.worker_pods))
                loop = _Loop(folder, base, ray, display, options)
                final = loop.run_attempts()
            # Before the nodes are ended, which takes seconds.
            succeeded = _show_end(run, loop, final, time.monotonic() - began, console)
            # After the nodes have uploaded what was printed, also where Ctrl-C ends them.
            phase = Phase.SUCCEEDED if succeeded else Phase.FAILED
            at_end.callback(record.ended, phase, final if isinstance(final, str) else "")
        return succeeded


@contextlib.contextmanager
def _ray_starts() -> Iterator[None]:
    """While Ray is started: what the machine refuses is said in a sentence."""
    try:
        yield
    except OSError as error:
        raise LocalError(
            f"Ray cannot be started, since this machine refuses what it needs "
            f"({error.strerror or error}: {error.filename or 'no file is named'}); Ray keeps its "
            "files below /tmp: have space there and the right to write"
        ) from error


def _with_script(rendered: RunContract, script: Path | None) -> dict[str, Any]:
    """The script as it is on this machine."""
    path = str(script) if script else None
    if rendered.torchrun is not None and path is not None:
        return {"torchrun": rendered.torchrun.model_copy(update={"script": path})}
    return {"script": path}


def _on_one_machine(rules: Sequence[ContractRule]) -> list[ContractRule] | None:
    """The rules where there is no other node: no driver waits for one."""
    plain = {"RestartOnOtherNode": "Restart", "RestartOnDemand": "Restart"}
    return [
        rule.model_copy(update={"then": plain.get(rule.then, rule.then)}) for rule in rules
    ] or None


def _show_end(
    run: TrainingRun, loop: "_Loop", final: Progress | str, elapsed: float, console: Console
) -> bool:
    """Print the result, or the reason for the failure; whether the run has succeeded."""
    folder = loop.folder
    if isinstance(final, Progress) and final.result is not None:
        console.print(f"{run.metadata.name} succeeded", style="green", highlight=False)
        interruptions = loop.interruptions.ended
        losses = loop.sweep_losses.count
        console.print(
            summary(final.result, interruptions, losses, elapsed, folder.uri), soft_wrap=True
        )
        if final.result.sweep is not None:
            found = final.result.sweep
            shown = f"{run.metadata.name}{options(folder.record.run)}"
            console.print(
                cell(
                    f"best trial: {found.best} of {len(found.trials)}; "
                    f"trainingrun sweep {shown} shows all"
                ),
                soft_wrap=True,
            )
        console.print(cell(f"log: {loop.log}"), soft_wrap=True)
        return True
    console.print(cell(f"{run.metadata.name} failed: {final}"), style="red", soft_wrap=True)
    for sentence in machine.in_local_words(str(final)):
        console.print(cell(sentence), soft_wrap=True)
    console.print(cell(f"output of the workers: {folder.logs}/local-*/worker-*"), soft_wrap=True)
    console.print(cell(f"log: {loop.log}"), soft_wrap=True)
    return False


@dataclass
class _Loop:
    """Attempt after attempt, until the run has succeeded or failed."""

    folder: Folder
    base: RunContract
    """The contract of the first attempt."""
    ray: LocalRay
    display: Display
    options: Options
    interruptions: Interruptions = field(default_factory=Interruptions)
    tally: Tally = field(default_factory=Tally)
    standing: Standing = field(default_factory=Standing)
    trained_before: float = 0.0
    """Seconds in steps that counted, of the former attempts."""
    judged: int = 0
    """Losses that were counted."""
    sweep_losses: TrialLosses = field(default_factory=TrialLosses)
    preemption: Preemption | None = None
    preemption_told: bool = False
    """Whether an interruption was shown as that of the preempted node."""
    log: Path = field(default_factory=Path)
    restored: bool = False
    """Whether it was shown what another run's checkpoint this run began from."""

    large: set[int] = field(default_factory=set)
    """Ranks of which it was shown that they use more memory than the run gives them."""

    def run_attempts(self) -> Progress | str:
        """The final progress document of a success, or a sentence about the failure."""
        spec = self.folder.run.spec
        if self.options.preempt_after_s is not None:
            self.preemption = Preemption(self.ray, self.options.preempt_after_s)
        deadline = time.monotonic() + (spec.active_deadline_seconds or float("inf"))
        number = self.folder.first_attempt
        while True:
            self.folder.record.begin(number, self.tally.restarts)
            self.log = self.folder.logs / f"driver-{number}.log"
            own = self.base.model_copy(update={"attempt": number})
            with _ray_starts():
                if not self.ray.running:
                    self.ray.start(spec.worker_pods)
                driver = Driver(self.ray, own, self.log)
            try:
                ended = self._follow(driver, number, deadline)
            except KeyboardInterrupt:
                self.display.note("saving a checkpoint; Ctrl-C again to stop at once")
                try:
                    saved = driver.suspend(_SUSPEND_S)
                except KeyboardInterrupt:
                    saved = False
                last = driver.progress()
                if (done := driver.success()) is not None:
                    self._show(done)
                    return done
                how = "" if saved else unsaved(last)
                if last is not None:
                    self.folder.record.show(last)
                self.folder.record.stopped = f"attempt {number} was stopped{how}"
                self.display.note(f"stopped{how}; --resume continues in {self.folder.root}")
                raise
            except LocalError as error:
                raise LocalError(f"{error}; {self._last_save(driver)}") from error
            except OSError as error:
                raise LocalError(
                    f"this machine refuses what the run needs ({error.strerror or error}: "
                    f"{error.filename or 'no file is named'}); {self._last_save(driver)}"
                ) from error
            finally:
                driver.kill()
                self.folder.record.no_trial_runs()
            if not isinstance(ended, FailedAttempt):
                return ended
            self.trained_before = self.standing.productive
            match after_failure(
                spec.failures,
                self.tally,
                ended.failure,
                ended.newer_checkpoint,
                ended.stepped,
                self.standing,
            ):
                case GiveUp(message):
                    return f"{ended.failure.message} ({message})"
                case Retry(tally, wait_s):
                    self.tally = tally
            number += 1
            self.display.note(
                f"attempt {number - 1} failed: {ended.failure.message}; "
                f"attempt {number} follows in {wait_s:.0f} s",
                style="yellow",
            )
            for sentence in machine.in_local_words(ended.failure.message):
                self.display.once(sentence)
            time.sleep(min(wait_s, max(deadline - time.monotonic(), 0)))

    def _last_save(self, driver: Driver) -> str:
        """Have the driver save a checkpoint and end; what is left, as the end of a sentence."""
        saved = driver.suspend(_SUSPEND_S)
        how = "a checkpoint is saved" if saved else "no last checkpoint is saved"
        return f"{how}, and --resume continues in {self.folder.root}"

    def _follow(
        self, driver: Driver, number: int, deadline: float
    ) -> Progress | str | FailedAttempt:
        """One attempt, until its driver has ended."""
        saved_before = self.standing.checkpoint
        while True:
            code = driver.exit_code  # before the document, so that the last one is read
            progress = driver.progress()
            if progress is not None:
                self._note_standing(progress)
                self._show(progress)
            self.display.show(self.folder.record.run, self._wait(driver, progress))
            self.display.output(driver.printed())
            if code is not None:
                return outcome(code, progress, saved_before)
            if not self.ray.head.alive:
                driver.kill()
                self.ray.stop()
                failure = Failure(kind="Infrastructure", message="the head node died")
                return failed(failure, progress, saved_before)
            if given_up := self._judge_losses():
                return given_up
            if time.monotonic() > deadline:
                return "activeDeadlineSeconds has passed"
            expected = None
            if self.preemption is not None:
                self.preemption.poll(self.interruptions.first_step_time)
                expected = self.preemption.node
            for dead, new in self.ray.replace_dead_workers(expected):
                self.display.note(f"node {dead.name} died; {new.name} replaces it")
            time.sleep(_POLL_S)

    def _judge_losses(self) -> str | None:
        """Count the losses that were not counted yet; why the run ends with one."""
        new = self.interruptions.losses[self.judged :]
        self.judged += len(new)
        for record in new:
            failures = self.folder.run.spec.failures
            of_trial = self.folder.run.spec.sweep is not None
            self.tally, ended = after_loss(
                failures, self.tally, record, self.standing, of_trial=of_trial
            )
            if ended is not None:
                return f"{record.message} ({ended.message})"
        return None

    def _note_standing(self, progress: Progress) -> None:
        newest = progress.checkpoint.step if progress.checkpoint is not None else 0
        if newest > self.standing.checkpoint:
            self.ray.forget_deaths()
        self.standing = Standing(
            step=max(self.standing.step, progress.step),
            checkpoint=max(self.standing.checkpoint, newest),
            productive=self.trained_before + progress.seconds.productive,
        )

    def _wait(self, driver: Driver, progress: Progress | None) -> Wait | None:
        if progress is not None and progress.state is not RunState.STARTING:
            return None
        nodes, ranks = self.ray.workers, self.folder.run.spec.workers.count
        started = sum(node.started for node in nodes)
        return wait_of(progress, started, len(nodes), driver.ranks(), ranks)

    def _show(self, progress: Progress) -> None:
        if progress.restored_from is not None and not self.restored:
            self.restored = True
            step = progress.resumed_from_step
            self.display.note(f"restored step {step} from {progress.restored_from}")
        self.folder.record.show(progress)
        if self.folder.record.problem is not None:
            self.display.once(self.folder.record.problem)
        self.display.overruled(progress)
        memory = self.folder.run.spec.workers.resources.memory
        for rank, sentence in beyond_memory(progress, memory).items():
            if rank not in self.large:
                self.large.add(rank)
                self.display.note(sentence, style="yellow")
        if progress.trials is not None:  # the other trials continue
            for line in self.sweep_losses.record(progress):
                self.display.note(line)
        over = self.interruptions.record(progress)
        if over is None or progress.trials is not None:
            return
        what = "training stopped"
        preempted = self.preemption.node if self.preemption is not None else None
        if preempted is not None and not self.preemption_told:
            self.preemption_told = True
            what = f"node {preempted.name} preempted"
        where = f" at step {over.stopped_step}" if over.measured else ""
        self.display.note(f"{what}{where}; training again after {over.seconds:.1f} s; {over.cost}")


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Make SIGTERM and SIGHUP clean up as Ctrl-C does; only the main thread can set handlers.

    After any of the three only Ctrl-C interrupts again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    interrupted = False

    def interrupt(kind: int, _frame: FrameType | None) -> None:
        # A shell hands on SIGHUP, and then the kernel sends it again; `timeout` sends SIGTERM
        # twice; a terminal is closed while Ctrl-C saves a checkpoint: no second Ctrl-C.
        nonlocal interrupted
        if interrupted and kind != signal.SIGINT:
            return
        interrupted = True
        raise KeyboardInterrupt

    kinds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # Ignored: as nohup has it, so that the run outlives its terminal.
    before = {kind: found for kind in kinds if (found := signal.getsignal(kind)) != signal.SIG_IGN}
    for kind in before:
        signal.signal(kind, interrupt)
    try:
        yield
    finally:
        for kind, found in before.items():
            signal.signal(kind, found)
