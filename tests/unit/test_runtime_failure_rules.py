"""Which rule a failure meets that the driver sees; patterns are RE2's, in linear time."""

import time

import pytest
from ray.train import WorkerGroupError

from trainingrun_protocol.failure_rules import ContractBackoff, ContractRule, ContractWhen
from trainingrun_runtime.driver.failure_rules import judge, matched
from trainingrun_runtime.known_errors.failure_causes import RaisedOnRank, classify


def a_rule(then: str = "Fail", **when: object) -> ContractRule:
    return ContractRule(when=ContractWhen.model_validate(when), then=then)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("uncorrectable ECC", True),
        (r"Xid \(PCI:[0-9a-f:]+\): 79", True),
        ("(?i)UNCORRECTABLE", True),
        ("^uncorrectable", False),
        ("loss is nan", True),
        ("nothing of that", False),
        ("(", False),
        ("(?=x)", False),
        ("((a{1000}){1000}){1000}", False),
    ],
)
def test_a_pattern_is_looked_for_in_the_message_and_in_each_line(pattern: str, found: bool) -> None:
    lines = ["step 1", "CUDA error: uncorrectable ECC", "NVRM: Xid (PCI:0000:3b:00): 79"]
    rules = [a_rule(log_pattern=pattern)]
    assert matched(rules, "rank 0 raised ValueError: loss is nan", lines) == [pattern] * found


def test_no_pattern_takes_long() -> None:
    """Python's own `re` would take longer than the universe is old."""
    began = time.monotonic()
    rules = [a_rule(log_pattern="(a+)+$"), a_rule(log_pattern="(.*)*x(.*)*y(.*)*z")]
    assert matched(rules, "a" * 1900 + "!", ["xy" * 5000] * 50) == []
    assert time.monotonic() - began < 5


def test_what_a_rank_raises_is_a_reason_and_its_exit_code() -> None:
    error = RaisedOnRank("SystemExit", "42", "train.py:3", "trace")
    failure = classify(WorkerGroupError("failed", {1: error}))
    verdict = judge([a_rule(exit_codes=[42])], failure, [])
    assert (verdict.facts.reasons, verdict.facts.exit_codes) == (["SystemExit"], [42])
    assert verdict.ends_the_run
    assert not judge([a_rule("Restart", exit_codes=[42])], failure, []).ends_the_run
    raised = classify(WorkerGroupError("failed", {0: KeyError("a")}))
    assert judge([a_rule(reasons=["KeyError"])], raised, []).ends_the_run


def test_a_text_that_is_no_exit_code_is_none() -> None:
    for text in ("", "no", "-1", "1000", "²"):
        error = RaisedOnRank("SystemExit", text, None, "")
        assert classify(WorkerGroupError("failed", {0: error})).exit_codes == ()


def test_waits_grow_up_to_their_limit() -> None:
    backoff = ContractBackoff(initial_seconds=10, factor=3, max_seconds=50)
    assert [backoff.seconds(count) for count in (0, 1, 2, 3, 10_000)] == [10, 10, 30, 50, 50]
