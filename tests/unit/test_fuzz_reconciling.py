"""The reconciler meets whatever can happen, in any order, and keeps its guarantees.

Each story is 200 steps of one run in a simulated cluster (support/simulation): pods, nodes,
RayJobs, the runtime, the queue, the user, the API server's refusals, and an operator that dies
between any two actions. After each reconcile the invariants of support/simulation/invariants.py
hold; at the end everything is healed, and the run must end well, or with a reason, in bounded time.

TRAININGRUN_FUZZ_STORIES sets how many stories are told (100), TRAININGRUN_FUZZ_STEPS their length
(200), and TRAININGRUN_FUZZ_RANDOM=1 draws other stories at each run, as `make test-all` does.
"""

import os
import time
from typing import Any

from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from support import closing_lines
from support.simulation.faults import GROUPS
from support.simulation.run_faults import RULES
from support.simulation.story import STEP_BITS, Story
from support.simulation.world import World

STORIES = int(os.environ.get("TRAININGRUN_FUZZ_STORIES", "100"))
STEPS = int(os.environ.get("TRAININGRUN_FUZZ_STEPS", "200"))
RANDOM = os.environ.get("TRAININGRUN_FUZZ_RANDOM", "") == "1"

GROUP = st.sampled_from([*GROUPS, "crashes"])


class Steps(list[int]):
    """A sequence's steps, in as short a text as possible."""

    def __repr__(self) -> str:
        return repr({number: step for number, step in enumerate(self) if step})


STEP = st.integers(0, 2**STEP_BITS - 1)

STEPS_OF_A_STORY = st.lists(STEP, min_size=STEPS, max_size=STEPS).map(Steps)


RUNS = st.fixed_dictionaries(
    {
        "pods": st.integers(1, 4),
        "per_pod": st.sampled_from([1, 2]),
        "total_steps": st.sampled_from([100_000, 5_000, 400]),
        "failures": st.fixed_dictionaries(
            {
                "maxRestarts": st.sampled_from([1000, 3, 0]),
                "maxAttemptsWithoutProgress": st.sampled_from([1000, 3]),
                "keepFailedPodsSeconds": st.sampled_from([0, 900]),
                "rules": st.sampled_from([[], [], *RULES]),
                "refillAfterSteps": st.sampled_from([1_000_000, 100]),
            }
        ),
        "minimum": st.sampled_from([None, None, 1, 2]),
        "standby": st.sampled_from([0, 0, 1]),
        "spot": st.sampled_from([False, False, True]),
        "ttl": st.sampled_from([None, 3600, 0]),
        # Most examples have the fewest: of stories without any, nothing is learned.
        "groups": st.frozensets(GROUP, min_size=3, max_size=7),
    }
)
"""Runs, and the groups of faults that they meet."""


def a_story(run: dict[str, Any]) -> Story:
    """The story of that run, before its first step."""
    spec = {"failures": run["failures"], "ttlSecondsAfterFinished": run["ttl"]}
    world = World(
        count=run["pods"],
        per_pod=run["per_pod"],
        total_steps=run["total_steps"],
        minimum=run["minimum"] if (run["minimum"] or 0) < run["pods"] else None,
        standby=run["standby"],
        spot=run["spot"],
    )
    return Story(world, spec, run["groups"])


def test_whatever_happens_the_promises_hold() -> None:
    names = ("stories", "steps", "steps before the end", "reconciles", "losses", "of them alone")
    reported = dict.fromkeys(names, 0)
    began = time.process_time()

    @settings(
        max_examples=STORIES,
        derandomize=not RANDOM,
        database=None,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(RUNS, STEPS_OF_A_STORY)
    def tell(run: dict[str, Any], steps: Steps) -> None:
        story = a_story(run)
        try:
            for step in steps:
                reported["steps before the end"] += not story.over
                story.step(step)
            story.end()
        except Exception:
            note(repr(story))
            raise
        reported["stories"] += 1
        reported["steps"] += story.steps
        reported["reconciles"] += story.operator.reconciles
        reported["losses"] += len(story.world.losses)
        reported["of them alone"] += sum(loss.alone for loss in story.world.losses)

    tell()
    closing_lines.say(
        "fuzzed reconciler: "
        + ", ".join(f"{number:,} {what}" for what, number in reported.items())
        + f", {time.process_time() - began:.0f} s of CPU"
    )
    assert reported["stories"] >= STORIES, reported
    assert reported["steps"] >= STORIES * STEPS, reported
