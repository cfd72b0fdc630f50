"""Numbers that ranks send each other over their own connections, and what a lost rank leaves."""

import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from trainingrun_runtime.coordination.rank_links import RankLinks, RankUnreachable, Round
from trainingrun_runtime.failure_causes import is_collective_error

TIMEOUT_S = 20.0
Ends = dict[tuple[int, int], socket.socket]
"""By rank and other rank."""


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Of the connections of three ranks."""
    ends: Ends = {}
    for one, other in ((0, 1), (0, 2), (1, 2)):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ends[one, other] = socket.create_connection(listener.getsockname())
            ends[other, one], _ = listener.accept()
    for end in ends.values():
        end.setblocking(False)
    yield ends
    for end in ends.values():
        end.close()


@pytest.fixture
def ranks(ends: Ends) -> list[RankLinks]:
    """Three, connected."""
    return connected(ends, TIMEOUT_S)


def connected(ends: Ends, timeout_s: float) -> list[RankLinks]:
    return [
        RankLinks(rank, {j: end for (i, j), end in ends.items() if i == rank}, timeout_s)
        for rank in range(3)
    ]


def lose(rank: int, ends: Ends) -> None:
    """Close its connections, as the end of its process does."""
    for (one, _), end in ends.items():
        if one == rank:
            end.close()


def arrived(of: Round) -> list[Sequence[int]] | None:
    """What is known of a round, once all of it has arrived or some time has passed."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := of.known()) is None and time.monotonic() < deadline:
        time.sleep(0.001)
    return found


def test_each_rank_gets_all_numbers_by_rank(ranks: list[RankLinks]) -> None:
    rounds = [links.start([rank, -rank, 2**63 - 1]) for rank, links in enumerate(ranks)]
    expected = [(rank, -rank, 2**63 - 1) for rank in range(3)]
    assert [each.wait() for each in rounds] == [expected] * 3


def test_a_rank_alone_waits_for_none() -> None:
    alone = RankLinks(0, {}, TIMEOUT_S).start([7])
    assert alone.known() == alone.wait() == [(7,)]


def test_a_rank_may_be_a_round_ahead(ranks: list[RankLinks]) -> None:
    first, *_ = [links.start([1]) for links in ranks]
    ranks[1].start([2])
    ranks[2].start([2])
    assert arrived(first) == [(1,)] * 3
    assert first.wait() == [(1,)] * 3
    assert ranks[0].start([2]).wait() == [(2,)] * 3


def test_what_no_rank_has_sent_yet_is_not_known(ranks: list[RankLinks]) -> None:
    mine = ranks[0].start([1])
    ranks[1].start([1])
    assert mine.known() is None
    ranks[2].start([1])
    assert arrived(mine) == [(1,)] * 3


def test_what_a_rank_sent_before_it_was_lost_counts(ranks: list[RankLinks], ends: Ends) -> None:
    """A rank that ends after its last exchange does not wait until the others have read it."""
    mine = ranks[0].start([1])
    for lost in (1, 2):
        ranks[lost].start([1])
        lose(lost, ends)
    assert mine.wait() == [(1,)] * 3
    assert mine.known() == [(1,)] * 3


def test_a_lost_rank_is_named_at_once(ranks: list[RankLinks], ends: Ends) -> None:
    mine = ranks[0].start([1])
    ranks[1].start([1])
    lose(2, ends)
    with pytest.raises(
        RankUnreachable, match=r"rank 2 is lost: connection (closed|reset) by peer"
    ) as met:
        mine.wait()
    assert is_collective_error(met.value)
    assert mine.known() is None


def test_the_others_get_the_numbers_where_one_rank_is_lost(
    ranks: list[RankLinks], ends: Ends
) -> None:
    """The survivors know that all had finished a step, although a send to one of them fails."""
    theirs = ranks[2].start([1])
    ranks[1].start([1])
    lose(1, ends)
    mine = ranks[0].start([1])
    assert arrived(theirs) == [(1,)] * 3
    assert mine.wait() == [(1,)] * 3
    ranks[2].start([2])
    with pytest.raises(RankUnreachable, match="rank 1"):
        ranks[0].start([2]).wait()


def test_a_silent_rank_is_waited_for_as_long_as_set(ends: Ends) -> None:
    mine = connected(ends, 0.3)[0].start([1])
    began = time.monotonic()
    with pytest.raises(RankUnreachable, match=r"timed out waiting 0\.3 s for rank 1, 2"):
        mine.wait()
    assert time.monotonic() - began >= 0.3


def test_a_message_may_arrive_in_pieces(ends: Ends) -> None:
    one, other = ends[0, 1], ends[1, 0]
    RankLinks(1, {0: other}, TIMEOUT_S).start([3, 4])
    message = one.recv(1000)
    mine = RankLinks(0, {1: one}, TIMEOUT_S).start([1, 2])
    for byte in message[:-1]:
        other.send(bytes([byte]))
        assert mine.known() is None
    other.send(message[-1:])
    assert mine.wait() == [(1, 2), (3, 4)]


def test_more_than_a_socket_takes_at_once_is_sent(ends: Ends) -> None:
    """While all of them send, and none has read anything yet."""
    ranks = connected(ends, TIMEOUT_S)
    many = list(range(1_000_000))  # 8 MB
    rounds: dict[int, list[object]] = {}

    def exchange(rank: int) -> None:
        rounds[rank] = [len(each) for each in ranks[rank].start(many).wait()]

    threads = [threading.Thread(target=exchange, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert rounds == dict.fromkeys(range(3), [len(many)] * 3)


def test_another_thread_that_reads_first_does_not_keep_the_numbers(ranks: list[RankLinks]) -> None:
    mine = ranks[0].start([1])
    done: list[object] = []
    waiting = threading.Thread(target=lambda: done.append(mine.wait()))
    waiting.start()
    for links in ranks[1:]:
        links.start([1])
    assert arrived(mine) == [(1,)] * 3
    waiting.join(TIMEOUT_S)
    assert done == [[(1,)] * 3]
