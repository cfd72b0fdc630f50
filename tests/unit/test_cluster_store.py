"""What the operator remembers of the cluster: the store, the nodes, the kinds of a run."""

import pytest

from support.builders import an_object
from trainingrun.cluster.api_client import Forbidden
from trainingrun.cluster.node_states import UNKNOWN_NODE_S, Nodes
from trainingrun.cluster.object_store import Store
from trainingrun.cluster.run_stores import Stores
from trainingrun.cluster.watch_state import STALE_AFTER_S, Watch


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
class TestStore:
    def test_it_never_goes_back_to_an_older_version(self, packed):
        store = Store(packed=packed)
        store.saw(an_object("a", 5, spec="new"))
        store.saw(an_object("a", 4, spec="old"))
        assert store.get("ns", "a")["spec"] == "new"

    def test_late_news_of_a_deleted_object_do_not_bring_it_back(self, packed):
        store = Store(packed=packed)
        store.saw(an_object("a", 5))
        store.forget("ns", "a", "u")
        store.saw(an_object("a", 6))
        assert store.get("ns", "a") is None
        store.saw(an_object("a", 7, uid="another"))
        assert store.get("ns", "a") is not None

    def test_late_news_of_a_replaced_object_do_not_bring_it_back(self, packed):
        store = Store(packed=packed)
        store.saw(an_object("a", 5, uid="old"))
        store.saw(an_object("a", 7, uid="new"))
        store.forget("ns", "a", "new")
        store.saw(an_object("a", 9, uid="old"))
        assert store.get("ns", "a") is None

    def test_a_list_taken_before_our_own_write_does_not_take_it_away(self, packed):
        store = Store(packed=packed)
        store.saw(an_object("vanished", 3, uid="1"))
        store.saw(an_object("listed", 4, uid="2"))
        store.saw(an_object("written-since", 8, uid="3"))
        store.keep_listed({("ns", "listed")}, version=5)
        assert sorted(store.keys()) == [("ns", "listed"), ("ns", "written-since")]

    def test_a_list_of_one_namespace_says_nothing_of_another(self, packed):
        store = Store(packed=packed)
        store.saw(an_object("a", 3))
        store.keep_listed(set(), version=5, namespace="elsewhere")
        assert store.keys() == [("ns", "a")]

    def test_an_index_follows_its_objects(self, packed):
        store = Store(packed=packed, indices={"node": lambda item: item.get("node")})
        store.saw(an_object("a", 1, node="one"))
        store.saw(an_object("a", 2, node="two"))
        assert store.by("node", "one") == ()
        assert len(store.by("node", "two")) == 1
        store.forget("ns", "a", "u")
        assert store.by("node", "two") == ()
        assert not store.has("node", "two")

    def test_summaries_are_counted(self, packed):
        store = Store(packed=packed, summarize=lambda item: item["phase"])
        store.saw(an_object("a", 1, "1", phase="Running"))
        store.saw(an_object("b", 2, "2", phase="Running"))
        store.saw(an_object("a", 3, "1", phase="Failed"))
        assert store.summaries == {"Running": 1, "Failed": 1}
        store.forget("ns", "b", "2")
        assert store.summaries == {"Failed": 1}


class Answer:
    """To a watch, as `Watch` sees it."""

    closed, connection = False, None


@pytest.fixture
def clock():
    return [1000.0]


@pytest.fixture
def watch(clock):
    return Watch(None, "/things", Store(), what="Things", monotonic=lambda: clock[0])


class TestStaleness:
    def test_what_was_never_listed_is_unknown(self, watch):
        assert "have not been listed" in watch.stale

    def test_the_regular_end_of_a_watch_makes_nothing_stale(self, watch, clock):
        watch.state = "synced"
        watch.opened(Answer())
        clock[0] += 300
        assert watch.stale is None
        watch.began(watches=True)
        clock[0] += 1
        assert watch.stale is None
        watch.opened(Answer())
        assert watch.stale is None

    def test_without_an_open_watch_for_some_seconds_it_is_stale_until_it_has_caught_up(
        self, watch, clock
    ):
        watch.state = "synced"
        watch.opened(Answer())
        watch.began(watches=True)
        clock[0] += STALE_AFTER_S + 1
        assert "sends no news of the Things" in watch.stale


class TestNodes:
    @pytest.fixture
    def nodes(self, watch, clock):
        watch.state = "synced"
        watch.opened(Answer())
        return Nodes(watch, lambda: clock[0])

    def node(self, version: int = 1, **labels: str) -> dict:
        conditions = [{"type": "Ready", "status": "True"}]
        metadata = {"namespace": "", "labels": labels}
        return an_object("n", version, metadata=metadata, status={"conditions": conditions})

    def test_a_node_that_is_not_listed_is_gone_only_after_a_while(self, nodes, clock):
        assert nodes.states(["n"]) == {}
        clock[0] += UNKNOWN_NODE_S + 1
        assert nodes.states(["n"])["n"].exists is False

    def test_nodes_that_may_not_be_watched_are_unknown(self, nodes, watch, clock):
        watch.store.saw(self.node())
        assert nodes.states(["n"])["n"].ready
        watch.refused(Forbidden("403"))
        clock[0] += 100
        assert nodes.states(["n"]) == {}

    def test_a_node_keeps_its_hostname_when_it_is_gone(self, nodes, watch, clock):
        watch.store.saw(self.node(**{"kubernetes.io/hostname": "ip-10-0-0-7"}))
        assert nodes.states(["n"])["n"].hostname == "ip-10-0-0-7"
        watch.store.forget("", "n", "u")
        nodes.states(["n"])
        clock[0] += UNKNOWN_NODE_S + 1
        gone = nodes.states(["n"])["n"]
        assert (gone.exists, gone.hostname) == (False, "ip-10-0-0-7")

    def test_without_the_label_its_name_is_its_hostname(self, nodes, watch):
        watch.store.saw(self.node())
        assert nodes.states(["n"])["n"].hostname == "n"


class TestOfAThousandWorkers:
    def test_what_has_not_changed_is_not_read_again(self, watch, clock):
        """A reconcile of a run with 1,000 workers on as many nodes is to cost 2 ms at most."""
        watch.state = "synced"
        watch.opened(Answer())
        conditions = {"conditions": [{"type": "Ready", "status": "True"}]}
        for number in range(2):
            metadata = {"namespace": ""}
            node = an_object(f"n{number}", 1, f"u{number}", metadata=metadata, status=conditions)
            watch.store.saw(node)
        nodes = Nodes(watch, lambda: clock[0])
        first, second = nodes.states(["n0", "n1"]), nodes.states(["n0", "n1"])
        assert first["n0"] is second["n0"]
        watch.store.saw(an_object("n0", 2, "u0", metadata={"namespace": ""}, status={}))
        third = nodes.states(["n0", "n1"])
        assert (third["n0"].ready, third["n1"] is first["n1"]) == (False, True)

    def test_the_pods_of_a_run_are_sorted_once(self):
        store = Store(indices={"run": lambda pod: "r"})
        store.saw(an_object("b", 1, "1"))
        store.saw(an_object("a", 2, "2"))
        first = store.by("run", "r")
        assert [pod["metadata"]["name"] for pod in first] == ["a", "b"]
        assert store.by("run", "r") is first
        store.forget("ns", "a", "2")
        assert [pod["metadata"]["name"] for pod in store.by("run", "r")] == ["b"]


class TestStores:
    def run(self, name: str, version: int, **status) -> dict:
        return an_object(name, version, uid=name, spec={}, status=status)

    def pod(self, name: str, run: str, version: int) -> dict:
        metadata = {"labels": {"trainingrun.dev/run": run}}
        return an_object(name, version, uid=name, metadata=metadata, spec={})

    def test_an_ended_run_is_unfinished_while_something_of_it_is_left(self):
        stores = Stores()
        stores.runs.store.saw(self.run("goes-on", 1))
        stores.runs.store.saw(self.run("ended", 2, completionTime="2026-01-01T00:00:00Z"))
        stores.pods.store.saw(self.pod("left", "ended", 3))
        assert sorted(stores.unfinished()) == [("ns", "ended"), ("ns", "goes-on")]
        stores.pods.store.forget("ns", "left", "left")
        assert stores.unfinished() == [("ns", "goes-on")]
