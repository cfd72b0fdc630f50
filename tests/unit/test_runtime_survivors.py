"""Which ranks save the last step: of each part of the state one that holds it."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from trainingrun_runtime.coordinator.checkpoints import UploadedCheckpoint
from trainingrun_runtime.coordinator.ranks import Survivors
from trainingrun_runtime.survivors import survivors
from trainingrun_runtime.survivors.survivors import NotHeld, Offer, holders

PARTS = frozenset({7, 8})


def offer(part: int) -> Offer:
    return Offer(step=12, fingerprint=1, part=part, parts=PARTS)


def test_of_replicated_state_every_rank_has_all() -> None:
    assert holders({2: Offer(12, 1), 1: Offer(12, 1)}) == [[1, 2]]


def test_of_sharded_state_each_part_has_its_holders() -> None:
    assert holders({3: offer(8), 2: offer(7), 1: offer(8)}) == [[1, 3], [2]]


def test_a_part_that_nobody_holds_is_said() -> None:
    with pytest.raises(NotHeld, match="none of ranks 0 and 2, which are left, holds 1 of its 2"):
        holders({2: offer(7), 0: offer(7)})


class Coordinator:
    """Notes what it is told; each call returns what `ray.get` is to return."""

    def __init__(self, ranks: int) -> None:
        actors = {rank: str(rank).encode() for rank in range(ranks)}
        self.survivors = self._method("survivors", Survivors(actors, 10, ""))
        self.saved_alone = self._method("saved_alone")
        self.not_saved_alone = self._method("not_saved_alone")
        self.told: list[tuple[Any, ...]] = []

    def _method(self, name: str, answer: Any = None) -> SimpleNamespace:
        def remote(*values: Any) -> SimpleNamespace:
            if values:
                self.told.append((name, *values))
            return SimpleNamespace(answer=answer)

        return SimpleNamespace(remote=remote)


def save_offered(monkeypatch: pytest.MonkeyPatch, *offers: Offer) -> tuple[Any, list[int]]:
    """What the coordinator is told where ranks 0, 1 … offer these, and the ranks that save."""
    saving = []

    class Call:
        def __init__(self, actor: bytes, work: Any, *arguments: Any) -> None:
            rank = int(actor)
            self.answer: Any = offers[rank]
            if work is survivors.save:
                saving.append(rank)
                self.answer = UploadedCheckpoint("folder", arguments[0], len(offers), {})

    monkeypatch.setattr(survivors.training, "call_beside", Call)
    monkeypatch.setattr(survivors.ray, "get", lambda call, timeout: call.answer)
    monkeypatch.setattr(survivors.ray, "wait", lambda calls, **_: (calls, []))
    coordinator = Coordinator(len(offers))
    survivors.save_last_step(coordinator, [], lambda: True)
    (told,) = coordinator.told
    return told, saving


def test_of_ranks_that_disagree_about_the_state_none_saves_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, saving = save_offered(monkeypatch, Offer(12, 1), Offer(12, 2))
    assert told == ("not_saved_alone", "ranks 0 and 1 hold different states of step 12")
    assert saving == []


def test_the_newest_step_is_saved_by_a_rank_that_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (method, upload, ranks), saving = save_offered(monkeypatch, Offer(11, 1), Offer(12, 2))
    assert (method, upload.step, ranks) == ("saved_alone", 12, (1,))
    assert saving == [1]


DEAD, OFFERED = RayActorError(), Offer(12, 1)


@pytest.mark.parametrize(
    ("answers", "offered"),
    [
        pytest.param(
            [(0, DEAD), (6, OFFERED), (7, OFFERED)], [1, 2], id="a dead rank says nothing"
        ),
        pytest.param([(0, DEAD), (11, OFFERED)], [], id="the others are waited for as long"),
        pytest.param([(3, OFFERED), (4, DEAD), (4.9, OFFERED)], [0, 2], id="one more dies"),
        pytest.param([(3, OFFERED), (5.1, OFFERED)], [0], id="a stopped rank"),
    ],
)
def test_ranks_are_waited_for_until_one_of_them_has_offered_a_step(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[float, Any]], offered: list[int]
) -> None:
    """The call to a rank that is dead, too, fails at once."""
    now = [0.0]
    calls = [SimpleNamespace(at=at, answer=answer) for at, answer in answers]

    def wait(
        left: list[int], num_returns: int = 1, timeout: float = 0
    ) -> tuple[list[int], list[int]]:
        times = sorted(calls[call].at for call in left)
        now[0] = max(now[0], min(now[0] + timeout, times[num_returns - 1]))
        done = [call for call in left if calls[call].at <= now[0]]
        return done, [call for call in left if call not in done]

    def get(call: int, timeout: float) -> Offer:
        if isinstance(calls[call].answer, Exception):
            raise calls[call].answer
        return calls[call].answer

    monkeypatch.setattr(survivors.ray, "wait", wait)
    monkeypatch.setattr(survivors.ray, "get", get)
    monkeypatch.setattr(survivors, "time", SimpleNamespace(monotonic=lambda: now[0]))
    found, without = survivors._offers({rank: rank for rank in range(len(calls))})
    assert sorted(found) == offered
    assert sorted({*found, *without}) == list(range(len(calls)))
