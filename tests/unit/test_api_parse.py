"""One clear sentence for each mistake: the field, what was found, and what to write."""

import math
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.constraints import MINIMAL, MISSING, manifest_with
from trainingrun.api.base import MOST_LEVELS
from trainingrun.api.parse import InvalidRunError, parse

SENTENCES = [
    ("spec.wrokers", {}, "spec.wrokers is not a field; did you mean workers?"),
    ("spec.workers.pod_template", {}, "spec.workers.pod_template is not a field; did you mean pod"),
    ("spec.head.xyz", 1, "spec.head.xyz is not a field; spec.head has podTemplate, resources"),
    ("spec.storage", MISSING, "spec.storage is missing; add it: the bucket in which the run keeps"),
    ("spec", None, "spec is missing; add it"),
    ("spec.training", "a:b", 'spec.training is "a:b"; write a mapping'),
    ("spec.training.env", "A=1", "spec.training.env is wrong; write a list"),
    ("spec.workers.count", "4", 'spec.workers.count is "4"; write a whole number'),
    ("spec.workers.count", True, "spec.workers.count is true; write a whole number"),
    ("spec.workers.count", 2.5, "spec.workers.count is 2.5; write a whole number"),
    ("spec.workers.count", 0, "spec.workers.count is 0; write at least 1"),
    ("spec.workers.count", -3, "spec.workers.count is -3; write at least 1"),
    ("spec.workers.count", 10**9, "spec.workers.count is 1000000000; write at most 1000"),
    ("spec.checkpoints.everySeconds", "often", 'is "often": must be a number of seconds from 1 to'),
    ("spec.checkpoints.everySeconds", 0, "is 0: must be a number of seconds from 1 to 86400, or"),
    ("spec.checkpoints.everySeconds", 0.5, "is 0.5; write a whole number or auto"),
    ("spec.checkpoints.everySeconds", True, "is true; write a whole number or auto"),
    ("spec.suspend", "yes", 'spec.suspend is "yes"; write true or false'),
    ("spec.image", 5, "spec.image is 5; write a string, in quotes"),
    ("spec.workers.capacity.type", "spot", "write OnDemand, Spot or PreferSpot"),
    ("spec.workers.resources.cpu", "4 cores", 'cpu is "4 cores": must be a quantity of cores'),
    ("spec.workers.resources.memory", 16, "memory is 16: must be a quantity of bytes of at least"),
    ("metadata.name", MISSING, "metadata.name is missing; add it"),
    ("metadata.name", "Digits", 'metadata.name is "Digits": must have at most 41 characters'),
    ("spec.storage.uri", "runs", 'spec.storage.uri is "runs": must be a folder in a bucket'),
    ("kind", "RayJob", 'kind is "RayJob"; write kind: TrainingRun'),
    ("apiVersion", MISSING, "apiVersion is missing; write apiVersion: trainingrun.dev/v1alpha1"),
    ("spec.training.config", {"lr": math.nan}, "spec.training.config: must be JSON (no NaN"),
    ("spec.training.config", {"day": date(2026, 1, 1)}, "spec.training.config: must be JSON"),
    ("spec.training.config", {"x": "a" * 65536}, "put larger things into the image or the bucket"),
    (
        "spec.training.config",
        {"x": "ä" * 11000},
        "characters of ASCII (others as \\u escapes); put",
    ),
    (
        "spec.training.requirements",
        ["a" * 2000] * 17,
        "must have at most 32768 characters in all; put the packages into the image",
    ),
    ("spec.training.config", [1], "spec.training.config is a list; write a mapping"),
    ("spec.sweep.space", [{"name": "lr"}], "space[0]: set either values, or min and max"),
    (
        "spec.sweep.space",
        [{"name": "lr", "values": [1], "min": 0, "max": 1}],
        "space[0]: set either values, or min and max",
    ),
    ("spec.sweep.space", [{"name": "lr", "values": [[1]]}], "every item must be a number, true"),
    ("spec.sweep.space", [{"name": "lr", "min": "0", "max": 1}], 'min is "0"; write a number'),
    (
        "spec.sweep.space",
        [{"name": "layers", "min": 0.5, "max": 2, "type": "integer"}],
        "must be whole numbers where type is integer",
    ),
    (
        "spec.sweep",
        {
            "search": "grid",
            "metric": "loss",
            "mode": "min",
            "space": [{"name": name, "values": list(range(15))} for name in ("a", "b")],
        },
        "must have at most 200 combinations of values with search grid",
    ),
]


@pytest.mark.parametrize(
    ("path", "value", "sentence"), SENTENCES, ids=[sentence[:50] for *_, sentence in SENTENCES]
)
def test_a_mistake_is_reported_in_one_sentence(path: str, value: Any, sentence: str):
    with pytest.raises(InvalidRunError) as refused:
        parse(manifest_with(path, value))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(None, id="null"),
        pytest.param([], id="list"),
        pytest.param("TrainingRun", id="string"),
        pytest.param(3, id="number"),
    ],
)
def test_what_is_no_mapping_is_no_run(manifest: Any):
    with pytest.raises(InvalidRunError, match="this is no TrainingRun"):
        parse(manifest)


def test_a_misspelt_field_comes_before_the_missing_one_that_it_causes():
    run = manifest_with("spec.storage", MISSING)
    run["spec"]["storge"] = {"uri": "s3://runs"}
    with pytest.raises(InvalidRunError) as refused:
        parse(run)
    assert str(refused.value) == ("spec.storge is not a field; did you mean storage? (and 1 more)")
    assert len(refused.value.problems) == 2


WEBHOOK = "https://hooks.example.com/services/hunter2"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        pytest.param("spec.storage.uri", "s3://key:hunter2@runs", id="credentials in the bucket"),
        pytest.param("spec.storage.uri", "s3://runs?secret=hunter2", id="query in the bucket"),
        pytest.param(
            "spec.training.code.uri", "s3://key:hunter2@runs/a.zip", id="credentials of the code"
        ),
        pytest.param(
            "spec.training.requirements",
            ["a @ https://me:hunter2@example.com/a.whl"],
            id="credentials in a requirement",
        ),
        pytest.param(
            "spec.storage.endpoint", "https://key:hunter2@minio", id="credentials in the endpoint"
        ),
        pytest.param(
            "spec.training.env",
            [{"name": "A", "value": "hunter2", "valueFrom": {}}],
            id="value and its source",
        ),
        pytest.param(
            "spec.training.env", [{"name": "A", "value": ["hunter2"]}], id="value as a list"
        ),
        pytest.param(
            "spec.training.env", [{"name": "A", "value": "hunter2" * 3000}], id="value too long"
        ),
        pytest.param("spec.storage.uri", "s3://key:a/hunter2@runs", id="a slash in the bucket's"),
        pytest.param(
            "spec.storage.endpoint", "https://key:p@a/hunter2@minio", id="a slash in the endpoint's"
        ),
        pytest.param("spec.storage.credentialsSecret", "wJa/hunter2", id="key for its Secret"),
        *(
            pytest.param("spec.notify", [{"events": ["Failed"], "webhook": webhook}], id=id_)
            for id_, webhook in {
                "webhook": WEBHOOK,
                "webhook as a Secret": {"secretRef": WEBHOOK},
                "webhook as a Secret's name": {"secretRef": {"name": WEBHOOK, "key": "url"}},
                "webhook as a Secret's key": {"secretRef": {"name": "hooks", "key": WEBHOOK}},
            }.items()
        ),
    ],
)
def test_no_secret_is_repeated(path: str, value: Any):
    with pytest.raises(InvalidRunError) as refused:
        parse(manifest_with(path, value))
    assert "hunter2" not in str(refused.value)


def test_metadata_of_the_server_is_taken_as_it_comes():
    run = manifest_with("metadata.managedFields", [{"manager": "kubectl"}])
    assert parse(run).metadata.name == "digits"


def test_a_status_of_a_newer_operator_keeps_what_is_known():
    status = {"phase": "Running", "attempt": 3, "somethingNew": {"a": 1}}
    assert parse({**MINIMAL, "status": status}).status.attempt == 3


SAMPLES = sorted((Path(__file__).parents[2] / "manifests" / "samples").glob("*.yaml"))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda path: path.stem)
def test_every_sample_is_valid(sample: Path):
    runs = [
        document
        for document in yaml.safe_load_all(sample.read_text())
        if document["kind"] == "TrainingRun"
    ]
    assert [parse(run).metadata.name for run in runs]


def of_a_manager(value: Any) -> Any:
    """The one place in a pod template that may hold anything."""
    return {"metadata": {"managedFields": [{"fieldsV1": value}]}}


FREEFORM = {
    "spec.training.config": lambda value: value,
    "spec.podTemplate": of_a_manager,
    "spec.workers.podTemplate": of_a_manager,
    "spec.head.podTemplate": of_a_manager,
}


@pytest.mark.parametrize("path", FREEFORM)
def test_what_is_free_form_is_bounded_in_depth(path):
    def nested(levels: int) -> dict[str, Any]:
        value: dict[str, Any] = {"a": [1]}
        # Of a manager's fields four levels are above them.
        for _ in range(levels - (2 if path == "spec.training.config" else 6)):
            value = {"a": value}
        return manifest_with(path, FREEFORM[path](value))

    parse(nested(MOST_LEVELS))
    for levels in (MOST_LEVELS + 1, 100_000):
        with pytest.raises(InvalidRunError) as raised:
            parse(nested(levels))
        assert "must be nested at most 32 levels deep; flatten it" in str(raised.value)


def test_a_label_that_names_another_queue_than_the_spec_is_refused():
    for kind, label, refused in (
        ("Kueue", "team-a", False),
        ("Kueue", "team-b", True),
        ("Volcano", "team-b", False),
    ):
        run = manifest_with("spec.scheduling", {"queue": {"kind": kind, "name": "team-a"}})
        run["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": label}
        if refused:
            with pytest.raises(InvalidRunError, match="name two queues; take one of them out"):
                parse(run)
        else:
            parse(run)
