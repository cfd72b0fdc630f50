"""Carries the scenarios of a group out on one run, and on a fresh one after a failure."""

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any

from e2e.cluster import TestCluster
from e2e.diagnosing import keep_evidence
from e2e.kube import wait_for
from e2e.long_run import BEFORE_S, SECONDS_PER_STEP, LongRun, since_checkpoint
from e2e.outages import Outage
from e2e.report import gaps_in_numbers, seconds_without_training, steps_lost
from e2e.runs import (
    STEP_SECONDS,
    TOTAL_STEPS,
    WORKERS,
    Run,
    specification,
)
from e2e.scenario import ONE_WORKER_PER_NODE, weights

from .faults import Fault, scenarios
from .plan import Drawn, Outcome, Phase, Scenario

HANG_S = 25
"""Without a step, after which the workers begin again."""
LAST_STEPS = 20
"""Of a run in phase ENDING: more than are done until the fault comes."""
ROOM = 100
"""Steps that a run still has to do when a scenario begins: the longest takes fewer."""
TO_ITS_END_S = 300.0
"""In which a run that is no longer disturbed does the rest of its steps."""


def spec() -> dict[str, Any]:
    """The run that is disturbed: one worker on each node."""
    found = specification(failures={"hang": {"afterSeconds": HANG_S}})
    found["workers"] |= {"capacity": {"type": "PreferSpot"}, "placement": "Spread"}
    found["podTemplate"] = {"spec": {"topologySpreadConstraints": [ONE_WORKER_PER_NODE]}}
    return found


def print_at_once(text: str) -> None:
    """A line that is seen while the next scenario is still tried."""
    print(text, flush=True)


class Disturber:
    """Disturbs one run after the other.

    Attributes:
        outcomes: How each scenario went so far.
    """

    def __init__(
        self,
        cluster: TestCluster,
        reference: Callable[[], str],
        say: Callable[[str], None] = print_at_once,
    ) -> None:
        """Nothing begins yet.

        Args:
            cluster: Where.
            reference: SHA-256 of the undisturbed run's final weights.
            say: Told what happens.
        """
        self._cluster, self._reference, self._say = cluster, reference, say
        self._scenarios = scenarios()
        self._long: LongRun | None = None
        self._runs = 0
        self._of_this_run: list[Outcome] = []
        self._restarts = 0
        """That the faults of this run may have used up."""
        self.outcomes: list[Outcome] = []

    def go_through(self, group: Iterable[Drawn]) -> list[Outcome]:
        """Have these happen to a run, one after the other, and let it end."""
        before = len(self.outcomes)
        try:
            for drawn in group:
                self._try(drawn)
            self._end()
        except KeyboardInterrupt:
            del self.outcomes[before:]  # how the run would have ended is unknown
            raise
        return self.outcomes[before:]

    def _try(self, drawn: Drawn) -> None:
        scenario, fault = self._scenarios[drawn.scenario.name]
        outcome = Outcome(scenario)
        self._say(f"chaos: {scenario.name}, {drawn.delay_s:.1f} s after the phase began")
        begins_run = scenario.phase is Phase.STARTING
        self.outcomes.append(outcome)
        try:
            if begins_run or (fault.needs_spot and not self._is_on_spot_node()):
                self._end()
            if not begins_run:
                self._train()
            self._of_this_run.append(outcome)
            self._restarts += fault.restarts
            happens = {
                Phase.STARTING: self._starting,
                Phase.TRAINING: self._training,
                Phase.RECOVERING: self._recovering,
                Phase.SUSPENDING: self._suspending,
                Phase.RESUMING: self._resuming,
                Phase.ENDING: self._ending,
            }
            happens[scenario.phase](fault, scenario, drawn.delay_s, outcome)
            self._judge(outcome)
            self._say(f"chaos: {scenario.name}: survived, {_cost(outcome)}")
        except Exception as error:  # whatever it was, the next scenario is tried
            self._leave_out(one for one in self._of_this_run if one is not outcome)
            self._fail([outcome], error)

    def _judge(self, outcome: Outcome) -> None:
        scenario = outcome.scenario
        if outcome.seconds is not None:
            assert outcome.seconds <= scenario.budget_s, (
                f"without training for {outcome.seconds:.0f} s; "
                f"the budget is {scenario.budget_s:.0f} s"
            )
        if outcome.lost is not None:
            losses = 2 if scenario.phase is Phase.RECOVERING else 1
            meanwhile = int(scenario.lasts_s / SECONDS_PER_STEP)
            most = losses * since_checkpoint(SECONDS_PER_STEP) + meanwhile
            assert outcome.lost <= most, f"{outcome.lost} steps were done twice, at most {most} may"

    # The phases

    def _starting(self, fault: Fault, scenario: Scenario, delay_s: float, outcome: Outcome) -> None:
        long = self._new_run()
        long.apply(spec())
        time.sleep(delay_s)
        if self._is_ended_by(fault, long.run):
            return
        long.run.wait_for_step(1, timeout=scenario.budget_s)
        outcome.seconds = long.run.steps()[0].time - long.run.applied
        long.wait_for_checkpoint()
        outcome.lost = steps_lost(long.run.steps())

    def _training(self, fault: Fault, scenario: Scenario, delay_s: float, outcome: Outcome) -> None:
        long = self._present()
        with long.in_the_same_pods() if fault.keeps_pods else nullcontext():
            time.sleep(delay_s)
            since = time.time()
            if not self._is_ended_by(fault, long.run):
                self._goes_on(long, scenario, since, outcome)

    def _recovering(
        self, fault: Fault, scenario: Scenario, delay_s: float, outcome: Outcome
    ) -> None:
        long = self._present()
        since = time.time()
        long.run.kubectl.delete("pod", long.run.trainer())
        time.sleep(delay_s)
        if self._is_ended_by(fault, long.run):
            return
        self._goes_on(long, scenario, since, outcome)

    def _suspending(
        self, fault: Fault, scenario: Scenario, delay_s: float, outcome: Outcome
    ) -> None:
        long = self._present()
        long.run.patch(suspend=True)
        time.sleep(delay_s)
        if self._is_ended_by(fault, long.run):
            return
        self._is_suspended(long.run, scenario.budget_s)
        since = time.time()
        long.run.patch(suspend=False)
        self._resumes(long, scenario, since, outcome)

    def _resuming(self, fault: Fault, scenario: Scenario, delay_s: float, outcome: Outcome) -> None:
        long = self._present()
        long.run.patch(suspend=True)
        self._is_suspended(long.run, scenario.budget_s)
        since = time.time()
        long.run.patch(suspend=False)
        time.sleep(delay_s)
        if self._is_ended_by(fault, long.run):
            return
        self._resumes(long, scenario, since, outcome)

    def _ending(self, fault: Fault, scenario: Scenario, delay_s: float, outcome: Outcome) -> None:
        long = self._present()
        long.run.journals.set_pace(STEP_SECONDS)
        long.run.wait_for_step(TOTAL_STEPS - LAST_STEPS)
        long.run.journals.set_pace(SECONDS_PER_STEP)
        time.sleep(delay_s)
        since = time.time()
        if self._is_ended_by(fault, long.run):
            return
        long.run.succeed(timeout=scenario.budget_s + LAST_STEPS * SECONDS_PER_STEP)
        self._measure(long.run, since, outcome)

    def _is_ended_by(self, fault: Fault, run: Run) -> bool:
        """The fault comes, lasts as long as it does, and is undone; whether it ended the run."""
        began = Outage()
        with fault.act(run):
            began.last(fault.lasts_s)
        if fault.ends_run:
            self._is_gone(run)
        return fault.ends_run

    # What follows

    def _goes_on(self, long: LongRun, scenario: Scenario, since: float, outcome: Outcome) -> None:
        """It trains again, with all its pods, and still after that."""
        long.train_on(5, timeout=scenario.budget_s + 30)
        self._is_whole(long.run, scenario.budget_s)
        long.train_on(3, timeout=scenario.budget_s)
        self._measure(long.run, since, outcome)

    def _resumes(self, long: LongRun, scenario: Scenario, since: float, outcome: Outcome) -> None:
        long.train_on(3, timeout=scenario.budget_s + 30)
        self._is_whole(long.run, scenario.budget_s)
        steps = long.run.steps()
        outcome.seconds = next(step.time for step in steps if step.time > since) - since
        outcome.lost = steps_lost([step for step in steps if step.time > since - BEFORE_S])

    def _measure(self, run: Run, since: float, outcome: Outcome) -> None:
        steps = [step for step in run.steps() if step.time > since - BEFORE_S]
        over = steps[-1].time <= since  # it had done its last step
        outcome.seconds = 0.0 if over else seconds_without_training(steps, since)
        outcome.lost = steps_lost(steps)

    def _is_whole(self, run: Run, timeout: float) -> None:
        wait_for(
            f"{run.name} with all its pods, and neither Waiting nor Stalled",
            lambda: (
                len(run.workers()) == WORKERS
                and not run.holds("Waiting")
                and not run.holds("Stalled")
            ),
            timeout,
            run.sentence,
            every=1,
        )

    def _is_suspended(self, run: Run, timeout: float) -> None:
        run.wait_for_condition("Suspended", timeout)
        run.wait_until_freed()

    def _is_gone(self, run: Run) -> None:
        """Nothing of the run is left; the next scenario has a run of its own."""
        wait_for(
            f"{run.name} is gone",
            lambda: run.kubectl.find("trainingrun", run.name) is None,
            timeout=90,
        )
        kinds = "rayjobs,rayclusters,pods,secrets,networkpolicies"
        selector = f"trainingrun.dev/run={run.name}"
        wait_for(
            f"nothing that {run.name} owned is left",
            lambda: not run.kubectl.list(kinds, selector) and not run.services(),
            timeout=120,
            instead=lambda: (
                f"{run.kubectl('get', kinds, f'--selector={selector}')}, services {run.services()}"
            ),
        )
        self._forget()

    # The run

    def _new_run(self) -> LongRun:
        self._runs += 1
        run = Run(self._cluster, self._cluster.kubectl, f"chaos-{self._runs}")
        self._long = LongRun(run)
        return self._long

    def _present(self) -> LongRun:
        assert self._long is not None, "a run trains by now"
        return self._long

    def _train(self) -> None:
        """A run trains, its checkpoints are made, and enough of it is left."""
        if self._long is not None and self._long.run.steps()[-1].number > TOTAL_STEPS - ROOM:
            self._end()
        if self._long is None:
            self._new_run().start(spec())
        self._present().train_on(2)

    def _is_on_spot_node(self) -> bool:
        """Whether the present run has a worker there; a new one has."""
        if self._long is None:
            return True
        return self._cluster.spot_node in self._long.run.workers().values()

    def _forget(self) -> None:
        self._long, self._of_this_run, self._restarts = None, [], 0

    def _end(self) -> None:
        """Let the run end, where there is one: as if nothing had happened to it."""
        if self._long is None:
            return
        run, outcomes = self._long.run, self._of_this_run
        try:
            run.journals.set_pace(STEP_SECONDS)
            status = run.succeed(timeout=TO_ITS_END_S)
            equal = weights(status) == self._reference()
            for outcome in outcomes:
                outcome.weights_equal = equal
            assert gaps_in_numbers(run.steps()) == [], "steps were skipped"
            assert equal, f"{weights(status)} instead of {self._reference()}"
            used = status.get("restarts", 0)
            assert used <= self._restarts, f"restarts {used}, at most {self._restarts} may be used"
            run.remove()
            self._forget()
        except Exception as error:  # any of them may be to blame
            self._fail(outcomes, error)

    def _leave_out(self, outcomes: Iterable[Outcome]) -> None:
        """Their run does not end by itself: whether it would have had the weights is unknown."""
        unknown = {id(outcome) for outcome in outcomes}
        self.outcomes[:] = [one for one in self.outcomes if id(one) not in unknown]

    def _fail(self, outcomes: Iterable[Outcome], error: Exception) -> None:
        """Note why these have failed, keep what is left of the run, and go on without it."""
        text = " ".join(f"{type(error).__name__}: {error}".split())[:1500]
        for outcome in outcomes:
            outcome.failure = outcome.failure or text
        self._say(f"chaos: FAILED: {text}")
        try:
            name = f"chaos-run-{self._runs}"
            self._say(
                f"chaos: evidence: {keep_evidence(self._cluster, self._cluster.kubectl, name)}"
            )
            if self._long is not None:
                self._long.run.remove()
        except Exception as further:  # the next scenario is tried even so
            self._say(f"chaos: after the failure: {further}")
        self._forget()


def _cost(outcome: Outcome) -> str:
    if outcome.seconds is None:
        return "and nothing is left"
    return f"{outcome.seconds:.1f} s without training, {outcome.lost} steps lost"
