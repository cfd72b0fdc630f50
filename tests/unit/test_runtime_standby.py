"""Which pods wait without a rank, and when that is known."""

from trainingrun_runtime.coordinator.standby import AGAIN_S, LEFT_S, Preparation, Standby

RANKS = frozenset({"ray-1", "ray-2"})
ALL = frozenset({"ray-1", "ray-2", "ray-3"})


class Node:
    """A preparation on a node, of which the test says when it ends."""

    def __init__(self, name: str) -> None:
        self.name, self.ended, self.cancelled = name, False, False
        self.error: Exception | None = None

    def result(self) -> tuple[str, str] | None:
        if self.error is not None:
            raise self.error
        number = self.name.removeprefix("ray-")
        return (f"node-{number}", f"pod-{number}") if self.ended else None

    def cancel(self) -> None:
        self.cancelled = True


class Nodes(list[Node]):
    """Those that were asked."""

    def ask(self, node: str, _: Preparation) -> Node:
        self.append(Node(node))
        return self[-1]


def prepared() -> tuple[Standby, Nodes]:
    """One whose rank 0 has told what to prepare."""
    nodes = Nodes()
    standby = Standby(nodes.ask)
    standby.prepare(lambda: ("", ""))
    return standby, nodes


def one_waits() -> Standby:
    """One with pod-3."""
    standby, nodes = prepared()
    standby.look(ALL, RANKS, 0)
    nodes[0].ended = True
    standby.look(ALL, RANKS, 1)
    assert standby.pods(training=True) == ["pod-3"]
    return standby


def test_a_pod_waits_once_it_is_prepared_and_while_a_group_trains() -> None:
    nodes = Nodes()
    standby = Standby(nodes.ask)
    standby.look(ALL, RANKS, 0)
    assert nodes == [], "rank 0 has not told yet"
    standby.prepare(lambda: ("", ""))
    assert standby.look(ALL, RANKS, 1) == []
    assert standby.look(ALL, RANKS, 2) == []
    assert ([node.name for node in nodes], standby.pods(training=True)) == (["ray-3"], [])
    nodes[0].ended = True
    assert standby.look(ALL, RANKS, 3) == [("ray-3", "node-3")]
    assert standby.pods(training=True) == ["pod-3"]
    assert standby.pods(training=False) == [], "the group that begins may be there"


def test_a_pod_that_ended_while_it_waited_stays_known_as_such() -> None:
    standby = one_waits()
    standby.look(RANKS, RANKS, 2)
    assert standby.pods(training=False) == ["pod-3"]


def test_a_pod_that_a_rank_was_in_never_ended_while_it_waited() -> None:
    standby = one_waits()
    standby.begin(frozenset({"ray-1", "ray-3"}), 2)
    standby.look(frozenset({"ray-1", "ray-4"}), frozenset({"ray-1", "ray-4"}), 3)
    assert standby.pods(training=True) == []


def test_a_node_that_gets_a_rank_while_it_is_prepared_does_not_wait() -> None:
    standby, nodes = prepared()
    standby.look(ALL, RANKS, 0)
    nodes[0].ended = True
    standby.begin(frozenset({"ray-2", "ray-3"}), 1)
    assert standby.look(ALL, RANKS, 2) == []
    assert standby.pods(training=True) == []


def test_a_node_that_a_rank_has_left_waits_after_a_while_only() -> None:
    standby, nodes = prepared()
    standby.begin(RANKS, 0)
    moved = frozenset({"ray-2", "ray-3"})
    standby.look(ALL, moved, LEFT_S)
    assert nodes == [], "it may be dying, and Ray not know it yet"
    standby.look(ALL, moved, LEFT_S + 1)
    assert [node.name for node in nodes] == ["ray-1"]


def test_a_node_on_which_the_preparation_fails_is_asked_again_later() -> None:
    standby, nodes = prepared()
    standby.look(ALL, RANKS, 0)
    nodes[0].error = RuntimeError("it broke")
    standby.look(ALL, RANKS, 1)
    assert len(nodes) == 1
    standby.look(ALL, RANKS, AGAIN_S)
    standby.look(ALL, RANKS, AGAIN_S)
    assert len(nodes) == 2
    standby.look(RANKS, RANKS, AGAIN_S + 1)
    assert nodes[1].cancelled, "its node is gone"
    assert standby.pods(training=True) == []
