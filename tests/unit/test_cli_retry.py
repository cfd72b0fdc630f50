"""`retry` and `export` make a run of another one, before what answers as an API server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.cli_server import RUNS, Server, call, running_server
from trainingrun.api.errors import RunError
from trainingrun.api.parse import parse
from trainingrun.client import retried_run


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with running_server(tmp_path, monkeypatch) as found:
        yield found


def a_whole_run(**status: Any) -> dict[str, Any]:
    """A run as the API server gives it, suspended after some steps."""
    return {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {
            "name": "digits",
            "namespace": "team-a",
            "uid": "1a2b3c4d-0000",
            "resourceVersion": "7",
            "generation": 2,
            "labels": {"team": "vision", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
        },
        "spec": {
            "training": {"function": "examples.digits:train", "config": {"lr": 0.1, "epochs": 5}},
            "workers": {"count": 2},
            "storage": {"uri": "s3://runs/team-a"},
            "suspend": True,
        },
        "status": {"phase": "Suspended", **status},
    }


FOLDER = "s3://runs/team-a/digits-1a2b3c4d"
SAVED = {"uri": f"{FOLDER}/checkpoints/x", "step": 40, "time": "t"}


@pytest.fixture
def saved(server: Server) -> Server:
    """A server with a run that has a checkpoint, which takes new runs."""
    server.answers[f"{RUNS}/digits"] = [(200, a_whole_run(checkpoint=SAVED))]
    server.answers[RUNS] = [(200, {"items": [a_whole_run()]})]
    server.answers[f"POST {RUNS}"] = [(201, {})]
    return server


def test_retry_creates_a_run_of_the_same_spec_that_begins_from_the_checkpoint(
    saved: Server,
) -> None:
    code, output, errors = call("retry", "digits", "--set", "training.config.lr=1e-3")
    assert (code, errors) == (0, "")
    assert output == (
        f"digits-retry-1 created; it begins from the newest intact checkpoint of {FOLDER}\n"
    )
    (created,) = saved.created
    assert created["metadata"] == {
        "name": "digits-retry-1", "namespace": "team-a", "labels": {"team": "vision"}
    }  # fmt: skip
    assert created["spec"] == {
        "training": {"function": "examples.digits:train", "config": {"lr": 0.001, "epochs": 5}},
        "workers": {"count": 2},
        "storage": {"uri": "s3://runs/team-a", "restoreFrom": {"uri": FOLDER}},
    }
    assert "status" not in created


def test_a_run_whose_storage_is_from_defaults_is_retried_before_it_has_begun(saved: Server) -> None:
    waiting = a_whole_run(phase="Pending")
    del waiting["spec"]["storage"]
    saved.answers[f"{RUNS}/digits"] = [(200, waiting)]
    team = {"metadata": {"name": "default"}, "spec": {"storage": {"uri": "s3://runs/team-a"}}}
    there = RUNS.replace("trainingruns", "trainingdefaults/default")
    saved.answers[there] = [(200, {**team, "kind": "TrainingDefaults"})]
    code, _, errors = call("retry", "digits")
    assert (code, errors) == (0, "")
    (created,) = saved.created
    assert "uri" not in created["spec"]["storage"], "which the new run has from them, too"


def test_a_run_whose_storage_is_left_to_defaults_is_retried_in_a_sentence(saved: Server) -> None:
    team = {"metadata": {"name": "default"}, "spec": {"storage": {"uri": "s3://runs/team-a"}}}
    there = RUNS.replace("trainingruns", "trainingdefaults/default")
    saved.answers[there] = [(200, {**team, "kind": "TrainingDefaults"})]
    said = call("retry", "digits", "--set", "storage=null")
    assert said == (0, "digits-retry-1 created; it begins at step 0\n", "")
    (created,) = saved.created
    assert "storage" not in created["spec"]


def test_the_api_server_is_asked_to_refuse_what_its_crd_lacks(saved: Server) -> None:
    assert call("retry", "digits")[0] == 0
    assert [query["fieldValidation"] for query in saved.queries] == ["Strict"]


def test_retry_with_dry_run_prints_the_run_and_creates_nothing(saved: Server) -> None:
    code, output, _ = call("retry", "digits", "--name", "again", "--step", "40", "--dry-run")
    assert code == 0
    printed = yaml.safe_load(output)
    assert printed["metadata"]["name"] == "again"
    assert printed["spec"]["storage"]["restoreFrom"] == {"uri": FOLDER, "step": 40}
    assert saved.created == []


def test_a_run_without_a_checkpoint_is_retried_from_where_it_began(saved: Server) -> None:
    saved.answers[f"{RUNS}/digits"] = [(200, a_whole_run())]
    assert call("retry", "digits")[1] == "digits-retry-1 created; it begins at step 0\n"
    assert "restoreFrom" not in saved.created[-1]["spec"]["storage"]

    folder = "s3://runs/team-a/teacher-feedbeef"
    run = a_whole_run(restoredFrom={"uri": folder})
    run["spec"]["storage"]["restoreFrom"] = {"run": "teacher", "step": 7}
    saved.answers[f"{RUNS}/digits"] = [(200, run)]
    _, output, _ = call("retry", "digits")
    assert output == f"digits-retry-1 created; it begins from step 7 of {folder}\n"
    assert saved.created[-1]["spec"]["storage"]["restoreFrom"] == {"uri": folder, "step": 7}

    run = a_whole_run(restoredFrom={"uri": folder, "step": 5})
    run["spec"]["storage"]["restoreFrom"] = {"run": "teacher"}
    saved.answers[f"{RUNS}/digits"] = [(200, run)]
    call("retry", "digits")
    # That one may have newer checkpoints by now.
    assert saved.created[-1]["spec"]["storage"]["restoreFrom"] == {"uri": folder, "step": 5}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        pytest.param(
            ["--set", "training.confg.lr=1"],
            "spec.training.confg is not a field; did you mean config?",
            id="unknown",
        ),
        pytest.param(
            ["--set", "workers.count=many"],
            'spec.workers.count is "many"; write a whole number',
            id="wrong type",
        ),
        pytest.param(
            ["--set", "training.function.name=a"],
            "--set training.function.name: there is no name, for training.function is not a "
            "mapping; correct the path",
            id="below a text",
        ),
        pytest.param(
            ["--set", "training.env.0.value=a"],
            "spec.training.env is wrong; write a list",
            id="below nothing",
        ),
        pytest.param(
            ["--set", "training.config.lr"],
            "--set training.config.lr is no setting; write one such as training.config.lr=0.01",
            id="no value",
        ),
        pytest.param(
            ["--set", "training.config.lr=[1"],
            "--set training.config.lr: [1 is not YAML; quote it if it is a text",
            id="no YAML",
        ),
        pytest.param(["--set", "storage=null"], "spec.storage is missing", id="no storage"),
        pytest.param(["--set", "storage=x"], "spec.storage is ", id="storage is a text"),
        pytest.param(
            ["--name", "Digits"], 'metadata.name is "Digits": must have at most 41', id="name"
        ),
    ],
)
def test_what_cannot_be_set_is_said_in_a_sentence_and_nothing_is_created(
    saved: Server, options: list[str], sentence: str
) -> None:
    code, output, errors = call("retry", "digits", *options)
    assert (code, output) == (1, "")
    assert errors.startswith(sentence)
    assert saved.created == []


def a_sweep() -> dict[str, Any]:
    """A sweep as the API server gives it; its status has the best trial's checkpoint."""
    run = a_whole_run(checkpoint=SAVED)
    space = [{"name": "lr", "values": [0.1, 0.2]}]
    run["spec"]["sweep"] = {"metric": "loss", "mode": "min", "samples": 2, "space": space}
    return run


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["retry", "digits"], "digits-retry-1 created; it begins with new trials\n"),
        (["export", "digits"], "team-a/digits begins with new trials\n"),
    ],
    ids=["retry", "export"],
)
def test_the_trials_of_a_sweep_begin_anew(saved: Server, command: list[str], said: str) -> None:
    saved.answers[f"{RUNS}/digits"] = [(200, a_sweep())]
    code, output, errors = call(*command)
    assert code == 0
    assert said in (output, errors)
    made = saved.created[0] if saved.created else yaml.safe_load(output)
    assert made["spec"]["storage"] == {"uri": "s3://runs/team-a"}
    assert parse(made).spec.sweep is not None, "which the API takes"


def test_a_step_of_a_sweep_is_refused(saved: Server) -> None:
    saved.answers[f"{RUNS}/digits"] = [(200, a_sweep())]
    assert call("retry", "digits", "--step", "40") == (
        1, "", "--step is 40, and digits is a sweep, whose trials begin anew; leave --step out\n"
    )  # fmt: skip


def test_a_step_of_a_run_without_a_checkpoint_is_refused(saved: Server) -> None:
    saved.answers[f"{RUNS}/digits"] = [(200, a_whole_run())]
    code, _, errors = call("retry", "digits", "--step", "4")
    assert code == 1
    assert errors.startswith("--step is 4, and digits has no checkpoint; leave --step out")


def test_a_name_that_is_taken_is_said_in_the_api_servers_words(saved: Server) -> None:
    saved.answers[f"POST {RUNS}"] = [(409, {"message": 'trainingruns "digits" already exists'})]
    assert call("retry", "digits", "--name", "again") == (
        1, "", 'TrainingRun again in namespace team-a: trainingruns "digits" already exists\n'
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "taken", "found"),
    [
        ("digits", [], "digits-retry-1"),
        ("digits", ["digits-retry-1", "digits-retry-3"], "digits-retry-2"),
        ("digits-retry-1", ["digits-retry-1"], "digits-retry-2"),
        ("a" * 41, [], "a" * 33 + "-retry-1"),
        ("a" * 32 + "-" + "b" * 8, [], "a" * 32 + "-retry-1"),
    ],
    ids=["first", "first free", "of a retry", "too long", "cut at a hyphen"],
)
def test_the_new_name_is_the_first_free_one(name: str, taken: list[str], found: str) -> None:
    assert retried_run.free_name(name, taken) == found


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("training.config.lr=0.5", ["training", "config", "lr"], 0.5),
        ("spec.training.config.new=[1, a]", ["training", "config", "new"], [1, "a"]),
        ("training.config.text=a=b", ["training", "config", "text"], "a=b"),
        ("training.config.tag=", ["training", "config", "tag"], ""),
        ("training.config.tag=#1", ["training", "config", "tag"], "#1"),
        ("training.config.lr=~", ["training", "config"], {"epochs": 5}),
        ("training.config.flag=true", ["training", "config", "flag"], True),
        ("checkpoints.best.metric=loss", ["checkpoints", "best", "metric"], "loss"),
        ("training.config.lr=null", ["training", "config"], {"epochs": 5}),
        ("storage.restoreFrom=null", ["storage"], {"uri": "s3://runs/team-a"}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_a_setting_changes_one_field_of_the_spec(setting: str, path: list[str], value: Any) -> None:
    found: Any = retried_run.retried(a_whole_run(checkpoint=SAVED), "b", None, [setting])["spec"]
    for part in path:
        found = found[part]
    assert found == value


def test_an_entry_of_a_list_is_set_by_its_number() -> None:
    run = a_whole_run(checkpoint=SAVED)
    run["spec"]["training"]["env"] = [{"name": "A", "value": "1"}]
    found = retried_run.retried(run, "b", None, ["training.env.0.value='2'"])
    assert found["spec"]["training"]["env"] == [{"name": "A", "value": "2"}]
    with pytest.raises(RunError, match=r"there is no 1, for training\.env is a list of 1, from 0"):
        retried_run.retried(run, "b", None, ["training.env.1.value='2'"])


# -- export


def test_export_prints_a_run_that_goes_on_from_its_checkpoint_where_it_is_applied(
    saved: Server,
) -> None:
    code, output, errors = call("export", "digits")
    assert code == 0
    assert yaml.safe_load(output) == {
        "apiVersion": "trainingrun.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": "digits", "namespace": "team-a", "labels": {"team": "vision"}},
        "spec": {
            "training": {"function": "examples.digits:train", "config": {"lr": 0.1, "epochs": 5}},
            "workers": {"count": 2},
            "storage": {"uri": "s3://runs/team-a", "restoreFrom": {"uri": FOLDER}},
            "suspend": True,
        },
    }
    assert errors == f"team-a/digits begins from the newest intact checkpoint of {FOLDER}\n"
    assert saved.created == []


def test_export_without_a_name_prints_all_that_have_not_ended(saved: Server) -> None:
    ended = a_whole_run(phase="Succeeded")
    ended["metadata"]["name"] = "old"
    begun = a_whole_run(phase="Running", checkpoint=SAVED)
    begun["spec"].pop("suspend")
    queued = a_whole_run(phase="Pending")
    queued["metadata"]["name"] = "queued"
    queued["spec"]["storage"] = {}  # which it gets from its defaults once it begins
    saved.answers[RUNS] = [(200, {"items": [ended, begun, queued]})]
    code, output, _ = call("export")
    assert code == 0
    digits, waiting = yaml.safe_load_all(output)
    assert (digits["metadata"]["name"], "suspend" in digits["spec"]) == ("digits", False)
    assert (waiting["metadata"]["name"], waiting["spec"]["storage"]) == ("queued", {})

    leaves = a_whole_run(phase="Running")
    late = a_whole_run(phase="Failed")
    for each in (leaves, late):
        each["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    saved.answers[RUNS] = [(200, {"items": [ended, leaves, late]})]
    assert call("export") == (0, "", "In namespace team-a is no run that has not ended.\n")


def test_a_run_on_a_claim_is_exported_with_the_word_that_the_claim_has_to_be_there(
    saved: Server,
) -> None:
    run = a_whole_run()
    run["spec"]["storage"] = {"uri": "pvc://shared/runs"}
    saved.answers[f"{RUNS}/digits"] = [(200, run)]
    _, _, errors = call("export", "digits")
    assert errors.endswith(
        "digits needs pvc://shared/runs with what is in it, also where it goes\n"
    )


@pytest.mark.parametrize("command", ["retry", "export"])
def test_the_labels_of_kueue_stay_so_that_no_run_begins_beside_its_queue(
    command: str, saved: Server
) -> None:
    run = a_whole_run(checkpoint=SAVED)
    run["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team-a"
    saved.answers[f"{RUNS}/digits"] = [(200, run)]
    _, output, _ = call(command, "digits", *(["--dry-run"] if command == "retry" else []))
    labels = {"team": "vision", "kueue.x-k8s.io/queue-name": "team-a"}
    assert yaml.safe_load(output)["metadata"]["labels"] == labels
