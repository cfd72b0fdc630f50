"""Parts of the controller and of the cluster that need no API server."""

import json
import logging

import pytest

from trainingrun.api.status import Attempt, Phase, RunStatus
from trainingrun.cluster.avoiding import avoiding
from trainingrun.cluster.cache import WatchCache
from trainingrun.cluster.nodes import UNKNOWN_NODE_S, Nodes
from trainingrun.cluster.parsing import parse
from trainingrun.controller.logs import JsonFormatter, about
from trainingrun.controller.progress import head_of
from trainingrun.controller.tokens import KEY_SECRET, Tokens, load_tokens


def an_object(name: str, version: int, uid: str = "u", **fields) -> dict:
    metadata = {"name": name, "namespace": "ns", "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | fields.pop("metadata", {}), **fields}


class TestCache:
    def cache(self, **options) -> WatchCache:
        return WatchCache(None, "/things", **options)

    def test_it_never_goes_back_to_an_older_version(self):
        cache = self.cache()
        cache.saw(an_object("a", 5, spec="new"))
        cache.saw(an_object("a", 4, spec="old"))
        assert cache.get("ns", "a")["spec"] == "new"

    def test_late_news_of_a_deleted_object_do_not_bring_it_back(self):
        cache = self.cache()
        cache.saw(an_object("a", 5))
        cache.forget("ns", "a", "u")
        cache.saw(an_object("a", 6))
        assert cache.get("ns", "a") is None
        cache.saw(an_object("a", 7, uid="another"))
        assert cache.get("ns", "a") is not None

    def test_a_list_taken_before_our_own_write_does_not_take_it_away(self):
        cache = self.cache()
        cache.saw(an_object("listed-before", 3, uid="1"))
        cache.saw(an_object("written-since", 8, uid="2"))
        cache._replace([], version="5")
        assert [item["metadata"]["name"] for item in cache.all()] == ["written-since"]

    def test_an_index_follows_its_objects(self):
        cache = self.cache(indices={"node": lambda item: item.get("node")})
        cache.saw(an_object("a", 1, node="one"))
        cache.saw(an_object("a", 2, node="two"))
        assert cache.by("node", "one") == []
        assert len(cache.by("node", "two")) == 1
        cache.forget("ns", "a", "u")
        assert cache.by("node", "two") == []


class TestNodes:
    @pytest.fixture
    def clock(self):
        return [1000.0]

    @pytest.fixture
    def parts(self, clock):
        nodes, leases = WatchCache(None, "/nodes"), WatchCache(None, "/leases")
        nodes.state = leases.state = "synced"
        nodes.connected_since = leases.connected_since = 0.0
        return nodes, leases, Nodes(nodes, leases, lambda: clock[0])

    def lease(self, text: str) -> dict:
        return {"metadata": {"name": "n"}, "spec": {"renewTime": text}}

    def node(self) -> dict:
        conditions = [{"type": "Ready", "status": "True"}]
        return an_object("n", 1, metadata={"namespace": ""}, status={"conditions": conditions})

    def test_a_lease_s_age_counts_from_when_its_renewal_was_seen(self, parts, clock):
        nodes, _, sights = parts
        nodes.saw(self.node())
        sights.renewed(self.lease("2020-01-01T00:00:00Z"), "n")
        assert sights.sights(["n"])["n"].lease_age_s == 1000, "from the watch's beginning"
        sights.renewed(self.lease("2020-01-01T00:00:10Z"), "n")
        clock[0] += 4
        assert sights.sights(["n"])["n"].lease_age_s == 4

    def test_while_the_api_server_is_away_no_lease_grows_old(self, parts, clock):
        nodes, leases, sights = parts
        nodes.saw(self.node())
        sights.renewed(self.lease("2020-01-01T00:00:00Z"), "n")
        leases.connected_since = None
        assert sights.sights(["n"])["n"].lease_age_s is None
        leases.connected_since = clock[0] = 2000.0
        clock[0] += 3
        assert sights.sights(["n"])["n"].lease_age_s == 3

    def test_a_node_that_is_not_listed_is_gone_only_after_a_while(self, parts, clock):
        _, _, sights = parts
        assert sights.sights(["n"]) == {}
        clock[0] += UNKNOWN_NODE_S + 1
        assert sights.sights(["n"])["n"].exists is False

    def test_nodes_that_may_not_be_watched_are_unknown(self, parts, clock):
        nodes, _, sights = parts
        nodes.state = "forbidden"
        clock[0] += 100
        assert sights.sights(["n"]) == {}


class TestAvoiding:
    def cluster(self, affinity: dict | None = None) -> dict:
        spec = {"containers": []} | ({"affinity": affinity} if affinity else {})
        group = {"groupName": "workers", "template": {"spec": spec}}
        return {
            "spec": {"headGroupSpec": {"template": {"spec": spec}}, "workerGroupSpecs": [group]}
        }

    def test_every_alternative_of_a_required_affinity_says_it(self):
        terms = [
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": [z]}]} for z in "ab"
        ]
        affinity = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
            }
        }
        *_, change = avoiding(self.cluster(affinity), ["n"])
        required = change["value"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        keys = [[e["key"] for e in t["matchExpressions"]] for t in required["nodeSelectorTerms"]]
        assert keys == [["zone", "kubernetes.io/hostname"]] * 2
        assert len(terms[0]["matchExpressions"]) == 1, "what was observed stays as it was"

    def test_what_is_there_already_is_no_patch(self):
        *_, change = avoiding(self.cluster(), ["n"])
        assert avoiding(self.cluster(change["value"]), ["n"]) == []


class TestParsing:
    def raw(self, **spec) -> dict:
        return an_object(
            "digits",
            1,
            apiVersion="trainingrun.dev/v1alpha1",
            kind="TrainingRun",
            spec={"training": {"function": "a:b"}, "storage": {"uri": "s3://x"}, **spec},
        )

    def test_a_spec_that_an_older_crd_let_through_is_named_and_keeps_its_history(self):
        raw = self.raw(workers={"count": 0})
        raw["status"] = RunStatus(attempt=3, phase=Phase.RUNNING).to_dict()
        run, invalid = parse(raw)
        assert invalid.startswith("spec.workers.count: ")
        assert (run.metadata.name, run.status.attempt) == ("digits", 3)

    def test_a_newer_operator_s_status_is_read_as_far_as_it_is_understood(self):
        attempt = Attempt(number=2, ray_job="digits-2", capacity="Spot", start_time="t").to_dict()
        status = RunStatus(attempt=2).to_dict()
        status |= {"attempts": [attempt | {"later": 1}, {"number": 1}], "fromTheFuture": {"a": 1}}
        run, invalid = parse(self.raw() | {"status": status})
        assert invalid is None
        assert run.status.attempt == 2
        assert [known.ray_job for known in run.status.attempts] == ["digits-2"]


class TestTokens:
    class Store:
        def __init__(self, found=None):
            self.found = found

        async def secret(self, namespace, name):
            return self.found if name == KEY_SECRET else None

        async def create(self, manifest):
            self.found = self.found or manifest
            return self.found is manifest

    async def test_the_key_is_made_once_and_gives_the_same_tokens_after_a_restart(self):
        store = self.Store()
        first = (await load_tokens(store, "ns")).of("uid")
        assert first == (await load_tokens(store, "ns")).of("uid")
        assert len(first) == 64
        assert first != (await load_tokens(self.Store(), "ns")).of("uid")

    async def test_a_secret_without_a_key_is_refused(self):
        with pytest.raises(ValueError, match="holds no 'key'"):
            await load_tokens(self.Store({"data": {"key": "c2hvcnQ="}}), "ns")

    def test_runs_have_tokens_of_their_own(self):
        tokens = Tokens(b"k" * 32)
        assert tokens.of("one") != tokens.of("two")


def test_logs_are_json_and_say_which_run_they_are_about():
    record = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": "a %s", "args": ("b",)}
    )
    with about(run="digits", namespace="ns"), about(attempt=2):
        line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["run"], line["namespace"], line["attempt"]) == (
        "a b",
        "digits",
        "ns",
        2,
    )
    assert "run" not in json.loads(JsonFormatter().format(record))


def a_head(uid: str = "p", **fields) -> dict:
    labels = {
        "trainingrun.dev/run-uid": "u",
        "trainingrun.dev/attempt": "1",
        "trainingrun.dev/role": "head",
    }
    return {
        "metadata": {"uid": uid, "labels": labels} | fields,
        "status": {"podIP": "fd00::1", "phase": "Running"},
    }


def test_the_head_is_asked_at_its_own_address():
    assert head_of([a_head()], "u", 1).url == "http://[fd00::1]:8484"


@pytest.mark.parametrize(("uid", "attempt"), [("another", 1), ("u", 2)])
def test_another_run_s_or_attempt_s_head_is_not_asked(uid, attempt):
    assert head_of([a_head()], uid, attempt) is None


def test_a_head_that_is_leaving_is_still_asked_unless_a_new_one_is_there():
    leaving = a_head("old", deletionTimestamp="2026-01-01T00:00:00Z")
    assert head_of([leaving], "u", 1).pod_uid == "old"
    assert head_of([leaving, a_head("new")], "u", 1).pod_uid == "new"
