"""What a run has from TrainingDefaults and ClusterTrainingDefaults, and the limits that it keeps.

Precedence is tested field by field; that the API server keeps what is unset unset, and that an
operator freezes it, is in `tests/apiserver/test_defaults.py`.
"""

import copy
import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from support.builders import UID, a_run, at
from support.reconciled import begins, reconcile, then
from trainingrun.api.base import Model, inherited
from trainingrun.api.defaults import FIELDS
from trainingrun.api.status import RunStatus
from trainingrun.api.v1alpha1 import IMMUTABLE, RunSpec
from trainingrun.cluster.parsing import parse
from trainingrun.reconciling import Observed
from trainingrun.rendering.defaults import applied, exceeded, resolved, resolved_by_status
from trainingrun.rendering.scheduling import queueing

FUNCTION = {"training": {"function": "a:b"}}
BUCKET = {"storage": {"uri": "s3://team"}}


def of_team(**spec: Any) -> dict[str, Any]:
    """The TrainingDefaults of the namespace."""
    return {
        "kind": "TrainingDefaults",
        "metadata": {"name": "default", "resourceVersion": "5", "generation": 2},
        "spec": spec,
    }


def of_cluster(**spec: Any) -> dict[str, Any]:
    """The ClusterTrainingDefaults."""
    return {**of_team(**spec), "kind": "ClusterTrainingDefaults"}


def a_manifest(status: RunStatus | None = None, **spec: Any) -> dict[str, Any]:
    """A run as the API server has it: without what is inherited."""
    return {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {
            "name": "digits",
            "namespace": "team-a",
            "uid": UID,
            "resourceVersion": "1",
            "creationTimestamp": at(0),
        },
        "spec": {
            "workers": {"count": 2, "capacity": {}},
            "failures": {"hang": {}, "backoff": {}},
            **FUNCTION,
            **spec,
        },
        "status": (status or RunStatus()).to_dict(),
    }


def spec_of(run: dict[str, Any], *objects: dict[str, Any]) -> dict[str, Any]:
    """The run's spec with what it has from these objects."""
    return dict(resolved(run, applied(run, objects))["spec"])


def test_run_namespace_and_cluster_come_in_this_order_field_by_field():
    run = a_manifest(failures={"maxRestarts": 1})
    team = of_team(failures={"maxRestarts": 2, "maxHangs": 2}, **BUCKET)
    cluster = of_cluster(
        failures={"maxRestarts": 3, "maxHangs": 3, "hang": {"afterSeconds": 60}}, image="a/b:1"
    )
    found = parse({**run, "spec": spec_of(run, team, cluster)})[0].spec
    assert found.failures.max_restarts == 1
    assert found.failures.max_hangs == 2
    assert found.failures.hang.after_seconds == 60
    assert found.failures.backoff.factor == 2, "which is built in"
    assert (found.image, found.storage.uri) == ("a/b:1", "s3://team")


def test_each_field_is_said_to_be_from_the_object_that_it_is_from():
    run = a_manifest(failures={"maxRestarts": 1})
    team = of_team(failures={"maxRestarts": 2, "maxHangs": 2}, podTemplate={"spec": {}}, **BUCKET)
    cluster = of_cluster(
        failures={"maxHangs": 3}, image="a/b:1", podTemplate={"metadata": {}}, maximum={}
    )
    found = applied(run, [team, cluster])
    assert found is not None
    by_team, by_cluster = found.sources
    assert sorted(by_team.fields) == ["failures.maxHangs", "podTemplate", "storage.uri"]
    assert sorted(by_cluster.fields) == ["image", "podTemplate"]
    assert (by_team.kind, by_team.resource_version, by_team.generation) == (
        "TrainingDefaults",
        "5",
        2,
    )


def test_without_objects_a_run_is_the_very_same_object():
    run = a_manifest()
    assert applied(run, ()) is None
    assert resolved(run, None) is run
    assert resolved_by_status(run) is run


@pytest.mark.parametrize("own", ["image", "activeDeadlineSeconds"])
def test_a_null_is_a_field_that_is_not_set(own: str):
    values = {"image": "a/b:1", "activeDeadlineSeconds": 60}
    assert spec_of(a_manifest(**{own: None}), of_team(**values))[own] == values[own]


def test_the_endpoint_of_one_bucket_is_not_used_for_another():
    storage = {
        "uri": "s3://team",
        "endpoint": "http://minio",
        "region": "eu",
        "credentialsSecret": "keys",
        "output": {"maxSize": "1Mi"},
    }
    own = spec_of(a_manifest(storage={"uri": "gs://mine"}), of_team(storage=storage))["storage"]
    assert own == {"uri": "gs://mine", "output": {"maxSize": "1Mi"}}
    team, cluster = of_team(storage={"uri": "gs://team"}), of_cluster(storage=storage)
    found = applied(a_manifest(), [team, cluster])
    assert found is not None
    assert found.spec["storage"] == {"uri": "gs://team", "output": {"maxSize": "1Mi"}}
    assert found.sources[1].fields == ["storage.output.maxSize"]


def test_a_run_on_demand_has_no_fallback_of_its_team():
    capacity = {"type": "Spot", "fallback": {"afterPreemptions": 5}}
    team = of_team(workers={"capacity": capacity}, **BUCKET)
    assert spec_of(a_manifest(), team)["workers"] == {"count": 2, "capacity": capacity}
    run = a_manifest(workers={"capacity": {"type": "OnDemand"}})
    assert parse(run, applied(run, [team]))[1] is None
    assert spec_of(run, team)["workers"]["capacity"] == {"type": "OnDemand"}


def test_a_part_of_a_budget_or_queue_is_for_runs_that_have_one():
    team = of_team(budget={"action": "Warn"}, **BUCKET)
    cluster = of_cluster(scheduling={"queue": {"kind": "Kueue"}, "priorityClassName": "high"})
    run = a_manifest()
    had = applied(run, [team, cluster])
    found, invalid = parse(run, had)
    assert (invalid, found.spec.budget, found.spec.scheduling.queue) == (None, None, None)
    assert found.spec.scheduling.priority_class_name == "high"
    assert had is not None
    assert [source.fields for source in had.sources] == [
        [f"storage.{name}" for name in BUCKET["storage"]],
        ["scheduling.priorityClassName"],
    ]
    run = a_manifest(budget={"amount": 5}, scheduling={"queue": {"name": "mine"}})
    found, invalid = parse(run, applied(run, [team, cluster]))
    assert invalid is None
    assert found.spec.budget is not None
    assert found.spec.scheduling.queue is not None
    assert (found.spec.budget.action, found.spec.scheduling.queue.kind) == ("Warn", "Kueue")


def test_a_run_with_the_label_of_a_queue_has_no_queue_of_its_team():
    run, queue = a_manifest(), {"queue": {"kind": "Kueue", "name": "team-a"}}
    team = of_team(scheduling={**queue, "priorityClassName": "high"}, **BUCKET)
    assert spec_of(run, team)["scheduling"]["queue"] == queue["queue"]
    run["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "mine"}
    assert spec_of(run, team)["scheduling"] == {"priorityClassName": "high"}
    found = applied(run, [team])
    assert found is not None
    assert "scheduling.queue.name" not in found.sources[0].fields
    assert parse(dict(resolved(run, found)))[0].spec.scheduling.queue is None


def test_a_run_whose_queue_label_is_taken_away_goes_to_the_queue_of_its_team():
    """Its next attempt begins in some queue, and not beside all of them."""
    run, queue = a_manifest(), {"kind": "Kueue", "name": "team-a"}
    run["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "mine"}
    team = of_team(scheduling={"queue": queue}, **BUCKET)
    run["status"] = RunStatus(attempt=1, defaults=applied(run, [team])).to_dict()

    def next_queue() -> str | None:
        return queueing(parse(run)[0], 2).job_labels.get("kueue.x-k8s.io/queue-name")

    assert next_queue() == "mine"
    del run["metadata"]["labels"]
    assert next_queue() == "team-a"


def test_defaults_that_are_merged_again_add_nothing():
    """`retry` keeps what the former run had, and merges the same defaults into it once more."""
    terms = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in "ab"]
    secrets = [{"name": "ray-head", "envFrom": [{"secretRef": {"name": "s"}}]}]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {
        "nodeAffinity": {required: {"nodeSelectorTerms": terms}},
        "podAntiAffinity": {required: [{"topologyKey": "h"}]},
    }
    team = of_team(podTemplate={"spec": {"containers": secrets, "affinity": affinity}})
    own = {required: {"nodeSelectorTerms": [{"matchExpressions": [{"key": "c"}]}]}}
    run = a_manifest(podTemplate={"spec": {"affinity": {"nodeAffinity": own}}})
    once = spec_of(run, team)
    assert spec_of({**run, "spec": once}, team) == once
    without_own = spec_of(a_manifest(), team)
    assert spec_of({**run, "spec": without_own}, team) == without_own


def test_pod_templates_are_merged_by_name_and_keep_what_removes_what_is_rendered():
    def template(**container: Any) -> dict[str, Any]:
        return {"spec": {"containers": [{"name": "ray-worker", **container}]}}

    team = template(env=[{"name": "A", "value": "team"}, {"name": "B", "value": "team"}])
    team["spec"]["serviceAccountName"] = "team"
    own = template(env=[{"name": "A", "value": "run"}], resources=None)
    own["spec"] |= {"priorityClassName": None, "imagePullSecrets": [{"name": "own"}]}
    found = spec_of(a_manifest(podTemplate=own), of_team(podTemplate=team))["podTemplate"]
    assert found["spec"]["serviceAccountName"] == "team"
    assert found["spec"]["priorityClassName"] is None
    (container,) = found["spec"]["containers"]
    assert container["resources"] is None
    assert container["env"] == [{"name": "A", "value": "run"}, {"name": "B", "value": "team"}]


def test_only_the_fields_that_have_defaults_are_taken_from_an_object():
    """An older CRD, or one that somebody has edited, may let others through."""
    found = applied(a_manifest(), [of_team(suspend=True, training={"function": "x:y"}, **BUCKET)])
    assert found is not None
    assert found.spec == BUCKET


def test_the_fields_are_those_of_a_run():
    assert FIELDS.keys() <= {field.alias for field in RunSpec.model_fields.values()}


def test_nothing_that_is_merged_changes_the_objects():
    run, team = a_manifest(), of_team(podTemplate={"spec": {"a": [1]}}, **BUCKET)
    before = copy.deepcopy((run, team))
    spec_of(run, team)
    assert (run, team) == before


TOO_MUCH = [
    ({"workers": 1}, {}, "spec.workers.count is 2; TrainingDefaults default allows at most 1"),
    (
        {"accelerators": 15},
        {"workers": {"count": 2, "standby": 1, "accelerator": {"kind": "nvidia", "count": 8}}},
        "spec.workers asks for 24 accelerators in all; TrainingDefaults default allows at most 15",
    ),
    ({"activeDeadlineSeconds": 60}, {}, "spec.activeDeadlineSeconds is missing; TrainingDefaults"),
    (
        {"activeDeadlineSeconds": 60},
        {"activeDeadlineSeconds": 61},
        "spec.activeDeadlineSeconds is 61; TrainingDefaults default allows at most 60",
    ),
    ({"budgetAmount": 10}, {}, "spec.budget.amount is missing; TrainingDefaults default allows"),
    ({"budgetAmount": 10}, {"budget": {"amount": 10.5}}, "spec.budget.amount is 10.5; Training"),
    (
        {"budgetAmount": 10},
        {"budget": {"amount": 1, "action": "Warn"}},
        "spec.budget.action is Warn; TrainingDefaults default has a largest budget",
    ),
]


@pytest.mark.parametrize(("maximum", "spec", "says"), TOO_MUCH)
def test_a_run_that_exceeds_a_limit_is_refused_with_a_sentence(
    maximum: dict[str, Any], spec: dict[str, Any], says: str
):
    run = a_manifest(**BUCKET, **spec)
    invalid = parse(run, applied(run, [of_team(maximum=maximum)]))[1]
    assert invalid is not None
    assert invalid.startswith(says)


def test_a_run_that_keeps_to_the_limits_is_not_refused():
    limits = {"workers": 2, "accelerators": 16, "activeDeadlineSeconds": 60, "budgetAmount": 10}
    run = a_manifest(
        workers={"count": 2, "accelerator": {"kind": "nvidia", "count": 8}},
        activeDeadlineSeconds=60,
        budget={"amount": 10},
        **BUCKET,
    )
    assert parse(run, applied(run, [of_team(maximum=limits)]))[1] is None


def test_the_trials_of_a_sweep_count_together():
    sweep = {
        "samples": 4,
        "metric": "loss",
        "mode": "min",
        "concurrency": 2,
        "space": [{"name": "lr", "values": [0.1]}],
    }
    run = a_manifest(sweep=sweep, **BUCKET)
    invalid = parse(run, applied(run, [of_team(maximum={"workers": 3})]))[1]
    assert invalid is not None
    assert "workers.count times sweep.concurrency is 4" in invalid


def test_both_objects_limit_a_run():
    run = a_manifest(**BUCKET)
    objects = [of_team(maximum={"workers": 5}), of_cluster(maximum={"workers": 1})]
    spec = parse(run)[0].spec
    assert exceeded(spec, applied(run, objects)) == [
        "spec.workers.count is 2; ClusterTrainingDefaults default allows at most 1 workers"
    ]


def test_an_edit_of_a_run_that_exceeds_a_limit_counts_up_to_it():
    limits = {"activeDeadlineSeconds": 60, "budgetAmount": 10}
    run = a_manifest(**BUCKET, activeDeadlineSeconds=60, budget={"amount": 10})
    kept = applied(run, [of_team(maximum=limits)])
    edited = a_manifest(
        RunStatus(attempt=1, defaults=kept),
        **BUCKET,
        activeDeadlineSeconds=10**6,
        budget={"amount": 10**6, "action": "Warn"},
    )
    found, invalid = parse(edited)
    assert invalid is not None
    assert found.spec.active_deadline_seconds == 60
    assert found.spec.budget is not None
    assert (found.spec.budget.amount, found.spec.budget.action) == (10, "Suspend")


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param({"fromTheFuture": 1}, id="a field"),
        pytest.param(
            {
                "workers": {"placement": "StrictPack", "capacity": {"type": "Spot"}},
                "failures": {
                    "rules": [{"when": {"classes": ["Preempted"]}, "then": "RestartOnDemand"}]
                },
            },
            id="a rule between fields",
        ),
        pytest.param({"podTemplate": {"spec": {"containers": [0] * 400}}}, id="a template"),
    ],
)
def test_the_limits_hold_of_an_edit_that_is_wrong_in_another_field_too(wrong: dict[str, Any]):
    run = a_manifest(**BUCKET, activeDeadlineSeconds=60, budget={"amount": 10})
    limits = {"activeDeadlineSeconds": 60, "budgetAmount": 10}
    status = RunStatus(attempt=1, defaults=applied(run, [of_team(maximum=limits)]))
    more = {"activeDeadlineSeconds": 10**6, "budget": {"amount": 10**6, "action": "Warn"}}
    found, invalid = parse(a_manifest(status, suspend=True, **BUCKET, **more, **wrong))
    assert invalid is not None
    assert found.spec.suspend
    assert found.spec.active_deadline_seconds == 60
    assert found.spec.budget is not None
    assert (found.spec.budget.amount, found.spec.budget.action) == (10, "Suspend")


def test_what_a_run_asks_of_nodes_is_not_multiplied_before_it_is_checked():
    def asking(terms: int) -> dict[str, Any]:
        exists = [
            {"matchExpressions": [{"key": f"k{n}", "operator": "Exists"}]} for n in range(terms)
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": exists}}
        return {"podTemplate": {"spec": {"affinity": {"nodeAffinity": required}}}}

    run = a_manifest(**BUCKET, **asking(3000))
    kept = applied(run, [of_team(**asking(4))])
    assert len(json.dumps(resolved(run, kept))) < 2 * len(json.dumps(run))
    invalid = parse(run, kept)[1]
    assert invalid is not None
    assert "nodeSelectorTerms is a list; write at most 16 entries, not 30" in invalid


@pytest.mark.parametrize(
    "values",
    [
        pytest.param([f"v{n}" for n in range(30_000)], id="a list"),
        pytest.param({f"v{n}": {} for n in range(30_000)}, id="what is no list"),
        pytest.param(["x" * 300_000], id="a text"),
    ],
)
@pytest.mark.parametrize("whose", ["run", "team"])
def test_nor_are_the_values_of_its_terms(values: Any, whose: str):
    def of(each: str) -> dict[str, Any]:
        first = {"operator": "In", "values": values if each == whose else ["a"]}
        rest = [{"operator": "Exists"}] * 3
        terms = [
            {"matchExpressions": [{"key": f"{each}{n}", **says}]}
            for n, says in enumerate([first, *rest])
        ]
        return {"podTemplate": {"spec": {"affinity": {"nodeAffinity": asking(*terms)}}}}

    run, team = a_manifest(**BUCKET, **of("run")), of_team(**of("team"))
    kept = applied(run, [team])
    assert len(json.dumps(resolved(run, kept))) < 1.1 * len(json.dumps([run, team]))
    invalid = parse(run, kept)[1]
    assert invalid is not None
    assert ".nodeSelectorTerms" in invalid


def with_list(field: str, number: int, name: str) -> dict[str, Any]:
    """A spec whose podTemplate has so many entries in a list; variables all of one name."""
    keys = [{"key": f"{name}-{n}", "operator": "Exists"} for n in range(number)]
    sources = [{"secretRef": {"name": f"{name}-{n}"}} for n in range(number)]
    env = [{"name": name, "value": "$(A)"}] * number
    spec: dict[str, Any] = {
        "tolerations": {"tolerations": keys},
        "envFrom": {"containers": [{"name": "ray-worker", "envFrom": sources}]},
        "env": {"containers": [{"name": "ray-worker", "env": env}]},
        "matchExpressions": {"affinity": {"nodeAffinity": asking({"matchExpressions": keys})}},
        "nodeSelectorTerms": {
            "affinity": {"nodeAffinity": asking(*({"matchExpressions": [key]} for key in keys))}
        },
    }
    return {"podTemplate": {"spec": spec[field]}}


def asking(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}


@pytest.mark.parametrize("too_long", ["run", "team", "cluster"])
@pytest.mark.parametrize(
    "field", ["tolerations", "envFrom", "env", "nodeSelectorTerms", "matchExpressions"]
)
@pytest.mark.parametrize("beside", [0, 1, 2])
def test_a_list_that_is_too_long_is_refused_whoever_has_it(field: str, too_long: str, beside: int):
    def of(whose: str, name: str) -> dict[str, Any]:
        number = 600 if whose == too_long else beside
        return with_list(field, number, name) if number else {}

    run = a_manifest(**BUCKET, **of("run", "A"))
    defaults = [of_team(**of("team", "B")), of_cluster(**of("cluster", "A"))]
    invalid = parse(run, applied(run, defaults))[1]
    assert invalid is not None
    what, advice, *_ = invalid.split(";")
    assert what.endswith((f".{field} is a list", f".{field} is wrong"))
    assert advice.startswith(" write at most ")


@pytest.mark.parametrize("budget", [{}, {"budget": {"amount": 5}}])
def test_a_largest_budget_of_zero_that_is_stored_refuses_runs_with_a_sentence(
    budget: dict[str, Any],
):
    run = a_manifest(**BUCKET, **budget)
    found, invalid = parse(run, applied(run, [of_team(maximum={"budgetAmount": 0})]))
    assert invalid is not None
    assert "TrainingDefaults default allows at most 0" in invalid
    assert found.spec.budget is not None
    assert (found.spec.budget.amount, found.spec.budget.action) == (0, "Suspend")


@pytest.mark.parametrize("wrong", [5000, "many", None])
def test_of_limits_that_this_version_does_not_know_the_others_count(wrong: Any):
    run = a_manifest(**BUCKET)
    limits = {"workers": wrong, "activeDeadlineSeconds": 60, "later": 1}
    invalid = parse(run, applied(run, [of_team(maximum=limits)]))[1]
    assert invalid is not None
    assert invalid.startswith("spec.activeDeadlineSeconds is missing")
    assert parse(run, applied(run, [of_team(maximum="none")]))[1] is None


def test_a_fault_of_the_defaults_is_said_to_be_theirs():
    run = a_manifest(**BUCKET)
    invalid = parse(run, applied(run, [of_team(image="two words")]))[1]
    assert invalid is not None
    assert invalid.endswith("(it is from TrainingDefaults default)")
    own = a_manifest(**BUCKET, image="two words")
    invalid = parse(own, applied(own, [of_team(failures={"maxHangs": 1})]))[1]
    assert invalid is not None
    assert "TrainingDefaults" not in invalid


def test_a_fault_of_the_runs_own_pod_template_is_not_said_to_be_of_the_defaults_alone():
    mount = {"name": "ray-worker", "volumeMounts": [{"name": "dta", "mountPath": "/d"}]}
    run = a_manifest(**BUCKET, podTemplate={"spec": {"containers": [mount]}})
    team = of_team(podTemplate={"spec": {"containers": [{"name": "side", "image": "i"}]}})
    invalid = parse(run, applied(run, [team]))[1]
    assert invalid is not None
    assert invalid.startswith("spec.podTemplate.spec.containers[1].volumeMounts[0].name is ")
    assert invalid.endswith("(the run's podTemplate merged over that of TrainingDefaults default)")
    own = a_manifest(**BUCKET, podTemplate={})
    invalid = parse(own, applied(own, [of_team(podTemplate={"spec": {"containers": 1}})]))[1]
    assert invalid is not None
    assert invalid.endswith("(it is from TrainingDefaults default)")


def test_a_run_without_storage_is_refused_and_told_both_ways():
    invalid = parse(a_manifest())[1]
    assert invalid is not None
    assert invalid == (
        "spec.storage is missing; add it: the bucket in which the run keeps its lease, "
        "checkpoints and result, or have TrainingDefaults of its namespace set storage.uri"
    )


def test_what_the_status_keeps_counts_and_nothing_else():
    run = a_manifest()
    first, later = of_team(image="a/b:1", **BUCKET), of_team(image="a/b:2", **BUCKET)
    begun = a_manifest(RunStatus(attempt=1, defaults=applied(run, [first])))
    found, invalid = parse(begun, applied(begun, [later]))
    assert (found.spec.image, invalid) == ("a/b:1", None)


def test_the_defaults_are_in_the_status_before_the_first_attempt_begins():
    run = a_manifest()
    kept = applied(run, [of_team(**BUCKET)])
    observed = Observed(parse(run, kept)[0], defaults=kept)
    first = reconcile(observed)
    assert first.actions == ()
    assert first.status.defaults == kept
    assert (first.status.attempt, first.requeue_after_s) == (0, 0)
    assert begins(reconcile(then(observed))) == 1


def test_a_run_without_defaults_begins_at_once_and_has_none_in_its_status():
    plan = reconcile(Observed(a_run()))
    assert begins(plan) == 1
    assert "defaults" not in plan.status.to_dict()


def test_a_run_that_other_defaults_may_repair_looks_at_them_again():
    run, invalid = parse(a_manifest())
    assert invalid is not None
    assert reconcile(Observed(run, invalid=invalid, repairable=True)).requeue_after_s == 30
    assert reconcile(Observed(run, invalid=invalid)).requeue_after_s is None


def begun(run: dict[str, Any], *objects: dict[str, Any], **edited: Any) -> RunSpec:
    """The spec of a run that has begun with these objects, once it is edited."""
    now = a_manifest(RunStatus(attempt=1, defaults=applied(run, objects)), **edited)
    found, invalid = parse(now)
    assert invalid is None
    return found.spec


def workers_with(**capacity: Any) -> dict[str, Any]:
    return {"workers": {"count": 2, "capacity": capacity}}


SPOT = of_team(workers={"capacity": {"type": "Spot", "fallback": {}}}, **BUCKET)
"""Of which `fallback` is not in the fields that a run has from it: nothing in it is set."""


def test_a_run_that_began_on_spot_stays_there_when_on_demand_is_written_into_it():
    """The API server takes that as no change: it may be the default of an earlier CRD."""
    found = begun(a_manifest(), SPOT, **workers_with(type="OnDemand")).workers.capacity
    assert found.type == "Spot"
    assert found.fallback is not None


@pytest.mark.parametrize("edited", [workers_with(), {"workers": {"count": 2}}], ids=str)
def test_a_run_that_began_on_demand_stays_there_when_its_line_is_taken_out(edited: Any):
    run = a_manifest(**workers_with(type="OnDemand"))
    found = begun(run, SPOT, **edited).workers.capacity
    assert (found.type, found.fallback) == ("OnDemand", None)


def test_the_size_of_the_output_stays_what_the_run_began_with_too():
    def sized(**output: str) -> dict[str, Any]:
        return {"storage": {"uri": "s3://mine", "output": output}}

    team = of_team(storage={"output": {"maxSize": "2Mi"}})
    with_own, without = sized(maxSize="1Gi"), sized()
    for first, then_, size in ((without, with_own, "2Mi"), (with_own, without, "1Gi")):
        assert begun(a_manifest(**first), team, **then_).storage.output.max_size == size


def test_what_may_change_after_creation_is_the_runs_own_again():
    team = of_team(failures={"maxRestarts": 7}, **BUCKET)
    assert begun(a_manifest(), team, failures={"maxRestarts": 3}).failures.max_restarts == 3
    own = a_manifest(failures={"maxRestarts": 3})
    assert begun(own, team, failures={}).failures.max_restarts == 7


def test_every_inherited_field_that_cannot_change_is_held_or_goes_with_one_that_is():
    def inherited_paths(model: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        for field in model.model_fields.values():
            here = (*path, field.alias)
            if field.json_schema_extra is inherited:
                yield here
            for each in (field.annotation, *get_args(field.annotation)):
                if isinstance(each, type) and issubclass(each, Model):
                    yield from inherited_paths(each, here)

    found = {path for path in inherited_paths(RunSpec) if path[0] in IMMUTABLE}
    assert {path for path in found if path[:3] != ("workers", "capacity", "fallback")} == {
        ("workers", "capacity", "type"),
        ("storage", "output", "maxSize"),
    }


def test_a_limit_counts_the_trials_that_a_sweep_asks_for_as_the_admission_policy_does():
    space = [{"name": "lr", "values": [0.1]}]
    sweep = {"samples": 1, "metric": "loss", "mode": "min", "concurrency": 2, "space": space}
    run = a_manifest(sweep=sweep, **BUCKET)
    found, invalid = parse(run, applied(run, [of_team(maximum={"workers": 3})]))
    assert found.spec.total_workers == 2
    assert invalid is not None
    assert "workers.count times sweep.concurrency is 4" in invalid
