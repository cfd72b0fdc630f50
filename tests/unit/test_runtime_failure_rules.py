"""Which rule a failure meets that the driver sees; patterns are RE2's, in linear time."""

import time

import pytest
from ray.train import WorkerGroupError

from trainingrun_protocol.failure_rules import ContractBackoff, ContractRule, ContractWhen
from trainingrun_runtime.driver.failure_rules import judge, matched
from trainingrun_runtime.known_errors.failure_causes import (
    FailureCause,
    PeerLost,
    RaisedOnRank,
    broken_gpu,
    classify,
)
from trainingrun_runtime.worker import leaving_a_rank


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


@pytest.mark.parametrize("then", ["RestartOnDemand", "OfANewerOperator"])
def test_what_the_operator_alone_does_is_a_restart_for_the_driver(then: str) -> None:
    raised = classify(WorkerGroupError("failed", {0: KeyError("a")}))
    verdict = judge([a_rule(then, reasons=["KeyError"])], raised, [])
    assert verdict.rule is not None
    assert (verdict.ends_the_run, verdict.moves) == (False, False)


def test_a_text_that_is_no_exit_code_is_none() -> None:
    for text in ("", "no", "-1", "1000", "²"):
        error = RaisedOnRank("SystemExit", text, None, "")
        assert classify(WorkerGroupError("failed", {0: error})).exit_codes == ()


def test_waits_grow_up_to_their_limit() -> None:
    backoff = ContractBackoff(initial_seconds=10, factor=3, max_seconds=50)
    assert [backoff.seconds(count) for count in (0, 1, 2, 3, 10_000)] == [10, 10, 30, 50, 50]


ECC = (
    "NCCL error in: ProcessGroupNCCL.cpp:3384, unhandled cuda error, NCCL version 2.27\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
    "Cuda failure 'uncorrectable ECC error encountered'"
)


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        (ECC, True),
        ("CUDA error: uncorrectable ECC error encountered", True),
        ("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", True),
        ("Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.", True),
        ("NVRM: Xid (PCI:0000:3b:00): 13, Graphics SM Exception", False),
        ("CUDA error: an illegal memory access was encountered", False),
        ("NCCL error: remote process exited or there was a network error", False),
        ("CUDA out of memory", False),
    ],
)
def test_a_gpu_is_broken_where_the_rank_s_own_error_says_so(text: str, broken: bool) -> None:
    assert (broken_gpu(RuntimeError(text)) is not None) is broken


def test_the_rank_with_the_broken_gpu_is_the_lost_one_and_its_node_is_left() -> None:
    """Rank 0 fails first, since its peer is gone; the error of NCCL becomes its peer's loss."""
    met = PeerLost("NCCL error")
    met.__cause__ = RuntimeError(ECC)
    told = leaving_a_rank.as_text(met)
    failure = classify(WorkerGroupError("failed", {0: PeerLost("gone"), 1: told}))
    assert (failure.cause, failure.ranks, failure.lost) == (FailureCause.WORKER_LOST, (1, 0), (1,))
    verdict = judge([], failure, [])
    assert verdict.moves
    assert verdict.facts.bad_node == "the GPU of rank 1 is broken there (uncorrectable ECC)"
