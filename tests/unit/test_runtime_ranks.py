"""Which nodes count as lost to the ranks that are on them."""

import pytest

from trainingrun_runtime.coordinator.rank_comparison import RankPlace
from trainingrun_runtime.coordinator.ranks import Ranks


def two_nodes() -> Ranks:
    places = Ranks()
    for rank in range(4):
        places.joined(rank, f"ray-{rank // 2}", f"node-{rank // 2}", f"pod-{rank // 2}")
    return places


def test_a_dead_node_is_lost_once_however_many_ranks_it_had() -> None:
    places = two_nodes()
    places.died({"ray-1", "a node without ranks"})
    assert places.lost_nodes == ["node-1"]


def test_a_node_on_which_a_new_pod_starts_is_not_lost() -> None:
    places = two_nodes()
    places.died({"ray-0", "ray-1"})
    places.joined(2, "ray-2", "node-1", "pod-2")
    assert places.lost_nodes == ["node-0"]
    places.died({"ray-0", "ray-1"})  # of which Ray still knows
    assert places.lost_nodes == ["node-0", "node-1"], "its other rank has not joined yet"
    places.joined(3, "ray-2", "node-1", "pod-2")
    places.died({"ray-0", "ray-1"})
    assert places.lost_nodes == ["node-0"]


def smaller(ranks: Ranks) -> Ranks:
    """A group of the two ranks on node-0 takes the place of the one on both nodes."""
    ranks.begin(1, 4)
    for rank in range(2):
        ranks.joined(rank, "ray-0", "node-0", "pod-0")
    ranks.begin(2, 2)
    return ranks


def test_a_node_that_a_smaller_group_has_left_is_lost_once_it_is_dead() -> None:
    ranks = smaller(two_nodes())
    assert ranks.lost_nodes == []
    ranks.died({"ray-1"})
    assert ranks.lost_nodes == ["node-1"]
    assert sorted(ranks.members()) == []
    ranks.joined(2, "ray-2", "node-1", "pod-2")
    ranks.died({"ray-1"})
    assert ranks.lost_nodes == [], "a new pod is there"


def test_a_node_is_not_said_to_be_lost_for_ever_while_fewer_ranks_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = smaller(two_nodes())
    ranks.died({"ray-1"})
    monkeypatch.setattr("trainingrun_runtime.coordinator.ranks.LOST_S", 0.0)
    ranks.died({"ray-1"})
    assert ranks.lost_nodes == [], "a new pod there may have no rank yet"
    ranks.begin(3, 4)
    assert ranks.lost_nodes == ["node-1"], "as without workers.minimum"


def test_the_place_of_a_loss_is_that_of_the_first_rank_that_is_known() -> None:
    places = two_nodes()
    assert places.of_first((7, 2, 0)) == RankPlace("ray-1", "node-1", "pod-1")
    assert places.of_first((7,)) is None


def moved() -> Ranks:
    """Rank 1 has moved from node-1 to the node that waited, and the group trains."""
    ranks = Ranks(others_wait=True)
    for rank in range(2):
        ranks.joined(rank, f"ray-{rank}", f"node-{rank}", f"pod-{rank}")
    ranks.begin(1, 2)
    ranks.waits("ray-2", "node-2")
    ranks.joined(1, "ray-2", "node-2", "pod-2")
    ranks.begin(2, 2)
    return ranks


def test_a_node_that_a_rank_has_left_for_one_that_waited_is_lost_once_it_is_dead() -> None:
    ranks = moved()
    assert ranks.ray_nodes() == {"ray-0", "ray-2"}
    ranks.died({"ray-1"})
    assert ranks.lost_nodes == ["node-1"]
    ranks.waits("ray-3", "node-1")
    ranks.died({"ray-1"})
    assert ranks.lost_nodes == [], "a new pod waits there"
    ranks.died({"ray-1", "ray-3"})
    assert ranks.lost_nodes == ["node-1"], "which is lost in its turn"


def test_a_pod_that_waited_beside_a_rank_ends_and_its_node_is_not_lost() -> None:
    ranks = moved()
    ranks.waits("ray-3", "node-0")
    ranks.died({"ray-3"})
    assert ranks.lost_nodes == []
    ranks.died({"ray-0", "ray-3"})
    assert ranks.lost_nodes == ["node-0"]


def test_a_lost_node_on_which_a_pod_may_wait_is_not_said_to_be_lost_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = moved()
    ranks.died({"ray-1"})
    monkeypatch.setattr("trainingrun_runtime.coordinator.ranks.LOST_S", 0.0)
    assert ranks.lost_nodes == []


def test_a_group_has_trained_once_each_of_its_ranks_has_returned() -> None:
    ranks = Ranks()
    assert ranks.not_returned() == [], "no group has begun"
    ranks.begin(1, 2)
    ranks.returned(1, 0)
    assert ranks.not_returned() == [1]
    ranks.begin(2, 2)
    ranks.returned(1, 1)  # it comes late
    assert ranks.not_returned() == [0, 1]
    ranks.returned(2, 1)
    ranks.returned(2, 0)
    assert ranks.not_returned() == []
