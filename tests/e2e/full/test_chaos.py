"""Runs that one thing after the other happens to, drawn by a seed: `make chaos`; see tests/chaos.

CHAOS_SEED decides what happens when; default: a number that is drawn and printed. CHAOS_MINUTES is
about how long all of it takes, default 10; `all`: every scenario. CHAOS_ONLY keeps the scenarios
with that text in their name.
"""

import os
import random
from collections.abc import Callable, Iterator

import pytest

from chaos.faults import scenarios
from chaos.plan import Group, cells, drawn_groups, table
from chaos.runner import Disturber, print_at_once
from e2e.cluster import ARTIFACTS, TestCluster
from support import benchmark_page

SEED = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1_000_000))
MINUTES = os.environ.get("CHAOS_MINUTES") or "10"
ONLY = os.environ.get("CHAOS_ONLY", "")
GROUPS = drawn_groups(
    (scenario for name, (scenario, _) in scenarios().items() if ONLY in name),
    SEED,
    None if MINUTES == "all" else float(MINUTES),
)

if not GROUPS:
    raise ValueError(f"CHAOS_ONLY is {ONLY!r}, which is in no scenario's name; see chaos.faults")


@pytest.fixture(scope="module")
def disturber(operated: TestCluster, reference: Callable[[], str]) -> Iterator[Disturber]:
    """All runs of the module; the table is written and printed after the last one."""
    print_at_once(f"\nCHAOS_SEED={SEED} CHAOS_MINUTES={MINUTES}: {sum(map(len, GROUPS))} scenarios")
    made = Disturber(operated, reference)
    yield made
    text = table(made.outcomes)
    (ARTIFACTS / "chaos.md").write_text(text)
    benchmark_page.write("chaos", cells(made.outcomes))
    print_at_once(f"\nCHAOS_SEED={SEED}\n{text}")


@pytest.mark.parametrize(
    "group", GROUPS, ids=[f"run-{number + 1}" for number in range(len(GROUPS))]
)
def test_a_run_survives(group: Group, disturber: Disturber):
    outcomes = disturber.go_through(group)
    failed = {one.scenario.name: one.failure for one in outcomes if one.failure}
    assert not failed, f"CHAOS_SEED={SEED}: {failed}"
