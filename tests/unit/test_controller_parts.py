"""Parts of the controller and of the cluster that need no API server."""

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from support.builders import a_ray_job, a_run, an_object, at
from trainingrun.api.status import Attempt, Phase, RunStatus
from trainingrun.cluster.live_cluster import KubernetesCluster, exclusion_patch
from trainingrun.cluster.parsing import parse
from trainingrun.controller.logs import Formatter, about
from trainingrun.controller.reconcile import _runs_on
from trainingrun.reconciling import Observed, Plan


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
        *_, change = exclusion_patch(self.cluster(affinity), ["n"])
        required = change["value"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        keys = [[e["key"] for e in t["matchExpressions"]] for t in required["nodeSelectorTerms"]]
        assert keys == [["zone", "kubernetes.io/hostname"]] * 2
        assert len(terms[0]["matchExpressions"]) == 1, "what was observed stays as it was"

    def test_what_is_there_already_is_no_patch(self):
        *_, change = exclusion_patch(self.cluster(), ["n"])
        assert exclusion_patch(self.cluster(change["value"]), ["n"]) == []


class TestUnreadableObjects:
    """No schema that KubeRay has shipped lets such an object in; a patched CRD might."""

    def test_one_is_skipped_and_counted_and_the_next_one_is_taken_in(self):
        counted: list[str] = []
        connection: Any = SimpleNamespace(server="https://example.com")
        cluster = KubernetesCluster(connection, count_unreadable=counted.append)
        run = {"labels": {"trainingrun.dev/run": "digits"}}
        broken, whole = (an_object(name, 1, kind="RayJob", status={}) for name in ("a", "b"))
        broken["status"] = ["jobStatus"]
        whole["metadata"] |= run
        broken["metadata"] |= run
        for seen in (broken, whole):
            cluster.handle({"type": "ADDED", "object": seen})
        store = cluster.stores.ray_jobs.store
        assert (counted, store.keys()) == (["RayJob"], [("ns", "b")])
        assert store.has_received(("ns", "a"), "u", 1), "the start does not wait for it for ever"


class TestStatusThatDoesNotFit:
    @pytest.mark.parametrize(
        ("outcome", "spent", "action", "deployment", "ended"),
        [
            pytest.param("Running", 9.9, "Suspend", "Running", False, id="it trains"),
            pytest.param("Running", 10, "Suspend", "Running", True, id="its budget is spent"),
            pytest.param("Running", 10, "Warn", "Running", False, id="and need not end it"),
            pytest.param("Failed", 0, "Suspend", "Running", True, id="its attempt has ended"),
            pytest.param("Failed", 0, "Suspend", "Complete", False, id="KubeRay frees it"),
        ],
    )
    def test_what_is_to_end_by_it_and_runs_on(self, outcome, spent, action, deployment, ended):
        attempt = {"number": 1, "rayJob": "digits-1", "startTime": at(0), "outcome": outcome}
        attempt["capacity"] = "OnDemand"
        status = RunStatus.model_validate(
            {"attempt": 1, "attempts": [attempt], "seen": {"meter": {"spent": spent}}}
        )
        stranger = a_ray_job(2, owner="a-former-run")
        run = a_run(budget={"amount": 10, "action": action})
        observed = Observed(run, ray_jobs=(a_ray_job(deployment=deployment), stranger))
        names = [ref.name for ref in _runs_on(observed, Plan((), status))]
        assert names == (["digits-1"] if ended else [])


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
        assert invalid.startswith("spec.workers.count is 0; write at least 1")
        assert (run.metadata.name, run.status.attempt) == ("digits", 3)

    @pytest.mark.parametrize(
        "wrong",
        [
            pytest.param({"workers": {"count": 0}}, id="below the minimum"),
            pytest.param({"training": {}}, id="training without a kind"),
            pytest.param({"storage": None}, id="no storage"),
            pytest.param(
                {"failures": {"maxRestarts": -1}, "checkpoints": {"keep": "all"}}, id="two fields"
            ),
        ],
    )
    def test_of_a_spec_that_cannot_be_used_the_rest_is_kept(self, wrong):
        rest = {"suspend": True, "activeDeadlineSeconds": 60, "ttlSecondsAfterFinished": 5}
        run, invalid = parse(self.raw(**rest, **wrong))
        assert invalid
        assert (run.spec.suspend, run.spec.active_deadline_seconds) == (True, 60)
        assert run.spec.ttl_seconds_after_finished == 5

    def test_a_newer_operator_s_status_is_read_as_far_as_it_is_understood(self):
        attempt = Attempt(number=2, ray_job="digits-2", capacity="Spot", start_time="t").to_dict()
        status = RunStatus(attempt=2).to_dict()
        status |= {"attempts": [attempt | {"later": 1}, {"number": 1}], "fromTheFuture": {"a": 1}}
        run, invalid = parse(self.raw() | {"status": status})
        assert invalid is None
        assert run.status.attempt == 2
        assert [known.ray_job for known in run.status.attempts] == ["digits-2"]


def test_logs_are_json_and_say_which_run_they_are_about():
    record = logging.makeLogRecord(
        {"name": "n", "levelname": "INFO", "msg": "a %s", "args": ("b",)}
    )
    with about(run="digits", namespace="ns"), about(attempt=2):
        line = json.loads(Formatter().format(record))
    assert (line["message"], line["run"], line["namespace"], line["attempt"]) == (
        "a b",
        "digits",
        "ns",
        2,
    )
    assert "run" not in json.loads(Formatter().format(record))
