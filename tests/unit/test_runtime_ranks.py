"""Which nodes count as lost to the ranks that are on them."""

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


def test_the_place_of_a_loss_is_that_of_the_first_rank_that_is_known() -> None:
    places = two_nodes()
    assert places.of_first((7, 2, 0)) == RankPlace("ray-1", "node-1", "pod-1")
    assert places.of_first((7,)) is None
