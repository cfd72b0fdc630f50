"""The store of one kind's objects: it never goes back, and has its own writes in it at once."""

import pytest

from support.builders import an_object
from trainingrun.cluster.object_store import Store


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
class TestStore:
    def test_it_never_goes_back_to_an_older_version(self, packed):
        store = Store(packed=packed)
        store.update(an_object("a", 5, spec="new"))
        store.update(an_object("a", 4, spec="old"))
        assert store.get("ns", "a")["spec"] == "new"

    def test_late_news_of_a_deleted_object_do_not_bring_it_back(self, packed):
        store = Store(packed=packed)
        store.update(an_object("a", 5))
        store.forget("ns", "a", "u")
        store.update(an_object("a", 6))
        assert store.get("ns", "a") is None
        store.update(an_object("a", 7, uid="another"))
        assert store.get("ns", "a") is not None

    def test_what_leaves_a_watch_by_its_label_returns_with_it(self, packed):
        """The watch says DELETED, and later ADDED of the same UID."""
        store = Store(packed=packed)
        store.update(an_object("a", 5))
        store.forget("ns", "a", "u", 7)
        assert store.has_received(("ns", "a"), "u", 7)
        assert not store.has_received(("ns", "a"), "u", 9)
        store.update(an_object("a", 6))
        assert store.get("ns", "a") is None, "late news"
        store.update(an_object("a", 9))
        assert store.get("ns", "a") is not None
        store.forget("ns", "a", "u", 7)
        assert store.get("ns", "a") is not None, "late news as well"
        store.keep_listed(set(), version=10)
        store.update(an_object("a", 11))
        assert store.get("ns", "a") is not None, "a list without it says nothing of later"

    def test_late_news_of_a_replaced_object_do_not_bring_it_back(self, packed):
        store = Store(packed=packed)
        store.update(an_object("a", 5, uid="old"))
        store.update(an_object("a", 7, uid="new"))
        store.forget("ns", "a", "new")
        store.update(an_object("a", 9, uid="old"))
        assert store.get("ns", "a") is None

    def test_a_list_taken_before_our_own_write_does_not_take_it_away(self, packed):
        store = Store(packed=packed)
        store.update(an_object("vanished", 3, uid="1"))
        store.update(an_object("listed", 4, uid="2"))
        store.update(an_object("written-since", 8, uid="3"))
        store.keep_listed({("ns", "listed")}, version=5)
        assert sorted(store.keys()) == [("ns", "listed"), ("ns", "written-since")]

    def test_a_list_of_one_namespace_says_nothing_of_another(self, packed):
        store = Store(packed=packed)
        store.update(an_object("a", 3))
        store.keep_listed(set(), version=5, namespace="elsewhere")
        assert store.keys() == [("ns", "a")]

    def test_a_version_that_cannot_be_read_counts_as_seen_and_takes_nothing_away(self, packed):
        store = Store(packed=packed)
        store.update(an_object("a", 3))
        store.skip(an_object("a", 5))
        store.skip(an_object("b", 6))
        assert store.has_received(("ns", "a"), "u", 5)
        assert store.has_received(("ns", "b"), "u", 6)
        assert not store.has_received(("ns", "b"), "u", 7)
        assert store.keys() == [("ns", "a")]

    def test_an_index_follows_its_objects(self, packed):
        store = Store(packed=packed, indices={"node": lambda item: item.get("node")})
        store.update(an_object("a", 1, node="one"))
        store.update(an_object("a", 2, node="two"))
        assert store.by("node", "one") == ()
        assert len(store.by("node", "two")) == 1
        store.forget("ns", "a", "u")
        assert store.by("node", "two") == ()
        assert not store.has("node", "two")

    def test_summaries_are_counted(self, packed):
        store = Store(packed=packed, summarize=lambda item: item["phase"])
        store.update(an_object("a", 1, "1", phase="Running"))
        store.update(an_object("b", 2, "2", phase="Running"))
        store.update(an_object("a", 3, "1", phase="Failed"))
        assert store.summaries == {"Running": 1, "Failed": 1}
        store.forget("ns", "b", "2")
        assert store.summaries == {"Failed": 1}


def test_the_pods_of_a_run_are_sorted_once():
    store = Store(indices={"run": lambda pod: "r"})
    store.update(an_object("b", 1, "1"))
    store.update(an_object("a", 2, "2"))
    first = store.by("run", "r")
    assert [pod["metadata"]["name"] for pod in first] == ["a", "b"]
    assert store.by("run", "r") is first
    store.forget("ns", "a", "2")
    assert [pod["metadata"]["name"] for pod in store.by("run", "r")] == ["b"]
