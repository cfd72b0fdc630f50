"""A rule of failures.rules for a rank that dies inside an attempt: with real Ray."""

from pathlib import Path

import pytest

from support.local_runs import Run
from trainingrun.local.ray_nodes import LocalRay
from trainingrun_protocol.exit_codes import FAILED_EXIT_CODE
from trainingrun_protocol.failure_rules import ContractRule, ContractWhen
from trainingrun_protocol.progress import RecordKind

# Of what `make test` leaves out: e2e-full kills a rank under a rule on a cluster.
pytestmark = pytest.mark.slow


def test_a_rule_ends_the_attempt_for_a_dead_rank_and_keeps_its_last_step(
    ray: LocalRay, tmp_path: Path
) -> None:
    config = {"folder": str(tmp_path), "signals": {"1": "SIGKILL"}, "seed": 1}
    run = Run(ray, tmp_path, "support.dies_in_a_step:train", config)
    rule = ContractRule(when=ContractWhen(classes=["WorkerLost"]), then="Fail")
    run.contract = run.contract.model_copy(update={"rules": [rule]})
    assert run.drive() == FAILED_EXIT_CODE
    progress = run.progress()
    assert progress.failure is not None
    assert (progress.failure.loss, progress.failure.rank) == ("WorkerLost", 1)
    assert progress.failure.facts is not None
    assert progress.failure.facts.reasons
    assert [one.kind for one in progress.records] == [RecordKind.RESTORED]
    assert progress.checkpoint is not None
    assert progress.checkpoint.step == progress.step
