"""`validate` and `render`: what a user is told about a file, without a cluster."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from trainingrun.cli.main import app

RUN = """
apiVersion: trainingrun.dev/v1alpha1
kind: TrainingRun
metadata: {name: digits}
spec:
  training: {function: "examples.digits:train"}
  storage: {uri: "s3://runs/demo"}
"""
CONFIG_MAP = """
apiVersion: v1
kind: ConfigMap
metadata: {name: my-code}
data: {train.py: "print(1)"}
"""


def call(*arguments: str | Path, stdin: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def test_a_valid_file_is_called_valid(file: Path) -> None:
    file.write_text(RUN)
    assert call("validate", file) == (0, f"{file}: digits is valid\n", "")


def test_other_documents_beside_a_run_are_left_alone(file: Path) -> None:
    file.write_text(f"{CONFIG_MAP}---{RUN}---\n")
    assert call("validate", file)[0] == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(
            "spec: [1, 2",
            "1: is not YAML: expected ',' or ']', but got '<stream end>'",
            id="no YAML",
        ),
        pytest.param("", " holds no TrainingRun; one document needs kind: TrainingRun", id="empty"),
        pytest.param(
            CONFIG_MAP,
            " holds no TrainingRun, only ConfigMap my-code; one document needs kind: TrainingRun",
            id="another kind alone",
        ),
        pytest.param(
            "just a sentence",
            "1: this is no TrainingRun; write a mapping with kind: TrainingRun",
            id="a sentence",
        ),
        pytest.param(
            "{spec: {}}",
            "1: apiVersion is missing; write apiVersion: trainingrun.dev/v1alpha1",
            id="no apiVersion",
        ),
        pytest.param(
            RUN.replace("storage:", "storages:"),
            "7: spec.storages is not a field; did you mean storage?",
            id="misspelled field",
        ),
        pytest.param(
            RUN + "  workers: {count: 0}",
            "8: spec.workers.count is 0; write at least 1",
            id="below the minimum",
        ),
        pytest.param(
            RUN + "  workers: {replicas: 2}",
            "8: spec.workers.replicas is not a field; did you mean count?",
            id="as a Deployment has it",
        ),
        pytest.param(
            RUN + "  failures: {maxFailures: 2}",
            "8: spec.failures.maxFailures is not a field; did you mean maxRestarts?",
            id="as Ray has it",
        ),
        pytest.param(
            RUN + "  workers: {count: \u201c2\u201d}",
            '8: spec.workers.count is "\u201c2\u201d"; write a whole number; write the plain '
            "quotes \" or ' around it, not typographic ones",
            id="typographic quotes",
        ),
        pytest.param(
            "{{ .Values.x }}\n" + RUN,
            "1: a key is no text; quote it; it has {{ … }}: render the template first, as `helm "
            "template` does",
            id="a template of Helm",
        ),
        pytest.param(
            RUN + "  workers: {count: many}",
            '8: spec.workers.count is "many"; write a whole number',
            id="wrong type",
        ),
    ],
)
def test_each_mistake_gets_a_sentence_with_the_files_name_and_line(
    file: Path, text: str, sentence: str
) -> None:
    file.write_text(text)
    code, output, errors = call("validate", file)
    assert (code, output) == (1, "")
    assert errors.splitlines()[0] == f"{file}:{sentence}"


def test_several_mistakes_are_all_reported_a_line_each(file: Path) -> None:
    file.write_text(RUN + "  workers: {count: 0}\n  suspend: maybe\n")
    code, _, errors = call("validate", file)
    assert code == 1
    assert len(errors.splitlines()) == 2
    assert [line.split(" ")[0] for line in errors.splitlines()] == [f"{file}:8:", f"{file}:9:"]


def test_one_bad_file_among_good_ones_is_enough_to_fail(file: Path, tmp_path: Path) -> None:
    file.write_text(RUN)
    code, output, errors = call("validate", file, tmp_path / "missing.yaml")
    assert code == 1
    assert output == f"{file}: digits is valid\n"
    assert errors == f"{tmp_path}/missing.yaml: cannot be read: No such file or directory\n"


def test_standard_input_is_a_file_too() -> None:
    assert call("validate", "-", stdin=RUN) == (0, "-: digits is valid\n", "")


def test_render_prints_what_the_operator_would_apply(file: Path) -> None:
    file.write_text(RUN)
    code, output, _ = call("render", file, "--attempt", "3")
    manifests = list(yaml.safe_load_all(output))
    assert code == 0
    assert [each["kind"] for each in manifests] == ["Secret", "NetworkPolicy", "RayJob"]
    assert manifests[-1]["metadata"]["name"] == "digits-3"
    assert all(each["metadata"]["ownerReferences"][0]["uid"] for each in manifests)


def test_render_takes_some_uid_for_the_folder_of_a_run_that_is_named(file: Path) -> None:
    storage = 'storage: {uri: "s3://runs/demo"'
    file.write_text(RUN.replace(storage, storage + ", restoreFrom: {run: other, step: 4}"))
    code, output, _ = call("render", file)
    assert code == 0
    assert '"restoreFrom":{"uri":"s3://runs/demo/other-00000000","step":4}' in output


def test_render_knows_the_platforms_and_names_them(file: Path) -> None:
    file.write_text(RUN)
    code, output, errors = call("render", file, "--platform", "mars")
    assert (code, output) == (1, "")
    assert errors.strip() == ("platform is 'mars'; use one of generic, gke, eks, karpenter, aks")


def test_render_of_a_bad_file_prints_no_manifest(file: Path) -> None:
    file.write_text(RUN + "  workers: {count: 0}")
    assert call("render", file) == (
        1,
        "",
        f"{file}:8: spec.workers.count is 0; write at least 1\n",
    )


def test_a_file_with_two_runs_must_be_split_to_be_run(file: Path) -> None:
    file.write_text(f"{RUN}---{RUN.replace('digits}', 'other}')}")
    code, _, errors = call("run", file, "--local")
    assert code == 1
    assert errors.strip() == (
        f"{file}: holds several TrainingRuns (digits, other); give each its file"
    )


def test_run_says_how_to_train_on_a_cluster(file: Path) -> None:
    code, _, errors = call("run", file)
    assert code == 1
    assert f"kubectl apply -f {file}" in errors


def test_a_wrong_duration_is_refused_with_examples() -> None:
    code, _, errors = call("run", "run.yaml", "--local", "--preempt-after", "soon")
    assert code == 2
    assert "soon is no duration" in errors


@pytest.mark.parametrize("duration", ["1000000d", "9" * 400])
def test_a_duration_that_no_date_can_hold_is_refused(duration: str) -> None:
    code, _, errors = call("cost", "--local", "--since", duration)
    assert code == 2
    assert "is too long; write at most 36500d" in " ".join(errors.split())


def _parameters(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The words of each command and what each of its options says of itself."""
    for name, child in getattr(command, "commands", {}).items():
        yield from _parameters(child, (*path, name))
    if path and not hasattr(command, "commands"):
        yield path, [parameter.help for parameter in command.params if parameter.name != "help"]


@pytest.mark.parametrize(
    ("path", "texts"), _parameters(typer.main.get_command(app)), ids=lambda part: "-".join(part[:2])
)
def test_help_shows_all_that_an_option_says_of_itself(
    path: tuple[str, ...], texts: list[str]
) -> None:
    """Rich would take what is in brackets for markup and leave it out."""
    result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "300"})
    shown = " ".join(result.output.split())
    assert [text for text in texts if " ".join(text.split()) not in shown] == []


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("run", "trainingrun-local/NAME"),
        ("retry", "NAME-retry-1, -2, …"),
        ("retry", "the newest intact one"),
        ("metrics", "the best one"),
        ("list", "kubeconfig's"),
    ],
)
def test_help_shows_defaults_that_are_computed(command: str, default: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300"})
    assert f"[default: ({default})]" in result.output


def test_version() -> None:
    code, output, _ = call("--version")
    assert code == 0
    assert output.startswith("trainingrun")


LIST = """
apiVersion: v1
kind: List
items:
- apiVersion: trainingrun.dev/v1alpha1
  kind: TrainingRun
  metadata: {name: one}
  spec:
    training: {function: "m:train"}
    workers: {count: COUNT}
    storage: {uri: "s3://runs/x"}
- {apiVersion: v1, kind: ConfigMap, metadata: {name: code}}
"""


def test_a_list_holds_what_its_items_are(file: Path) -> None:
    file.write_text(LIST.replace("COUNT", "2"))
    assert call("validate", file) == (0, f"{file}: one is valid\n", "")
    file.write_text(LIST.replace("COUNT", "0"))
    assert call("validate", file)[2] == f"{file}:10: spec.workers.count is 0; write at least 1\n"


def test_a_name_that_the_api_server_would_make_is_made(file: Path) -> None:
    file.write_text(RUN.replace("name: digits", "generateName: digits-"))
    names = {call("validate", file)[1] for _ in range(3)}
    assert len(names) == 3
    for name in names:
        assert re.fullmatch(rf"{file}: digits-[a-z0-9]{{5}} is valid\n", name)


def test_a_mark_at_the_beginning_of_a_file_is_left_out(file: Path) -> None:
    file.write_bytes(RUN.strip().encode("utf-8-sig"))
    assert call("validate", file)[0] == 0


def test_a_file_whose_name_is_not_utf_8_can_be_named(tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"caf\xe9.yaml")
    file.write_text(RUN)
    assert call("validate", file)[:2] == (0, f"{tmp_path}/caf\\xe9.yaml: digits is valid\n")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        pytest.param(
            f"{RUN}---{RUN}",
            [
                "11: TrainingRun digits is in the file twice, also in line 4; leave one of them "
                "out, or give it another name"
            ],
            id="a run twice",
        ),
        pytest.param(
            RUN.replace("kind: TrainingRun", "kind: trainingrun"),
            ['3: kind is "trainingrun"; write kind: TrainingRun'],
            id="in other letters",
        ),
        pytest.param(
            "{apiVersion: ray.io/v1, kind: RayJob, metadata: {name: pi}}\n---\n"
            "{apiVersion: v1, kind: Secret, metadata: [1]}",
            [" holds no TrainingRun, only RayJob pi, Secret; one document needs kind: TrainingRun"],
            id="other kinds",
        ),
        pytest.param(
            f"{RUN}---\nkind: ConfigMap\napiVersion: v1\nmetadata:\n",
            ["11: metadata.name of the ConfigMap is missing; add it"],
            id="a ConfigMap without a name",
        ),
        pytest.param(
            f"{RUN}---\nkind: ConfigMap\nmetadata: {{name: code}}\ndata: [1]\n",
            [
                "11: data of ConfigMap code is a list; write a mapping of file names to texts, "
                "such as {train.py: ...}"
            ],
            id="a ConfigMap with a list",
        ),
        pytest.param(
            f"{RUN}---\nkind: ConfigMap\nmetadata: {{name: code}}\ndata:\n  lr: 3e-4\n",
            ["12: data.lr of ConfigMap code is no text; put it in quotes"],
            id="a ConfigMap with a number",
        ),
        pytest.param(
            RUN + "  workers: {count: 1, count: 2}\n",
            ["8: count is set twice, also in line 8; leave one of them out"],
            id="a key twice",
        ),
        pytest.param(
            RUN + "  workers:\n    resources: {gpu: 8}\n",
            [
                "9: spec.workers.resources.gpu is not a field; write spec.workers.accelerator: "
                "{kind: nvidia, count: 8}"
            ],
            id="GPUs as resources",
        ),
        pytest.param(
            RUN + "  workers: {capacity: spot}\n",
            ['8: spec.workers.capacity is "spot"; write a mapping: {type: Spot}'],
            id="a word for a mapping",
        ),
        pytest.param(
            RUN.replace('train"}', 'train", env: {A: b}}'),
            ["6: spec.training.env is wrong; write a list of mappings with name, value, valueFrom"],
            id="a mapping for a list",
        ),
        pytest.param(
            RUN + "  workers: {resources: {memory: 16GB}}\n",
            [
                '8: spec.workers.resources.memory is "16GB": must be a quantity of bytes of at '
                "least 64Mi with its unit, such as 16Gi; did you mean 16G or 16Gi?"
            ],
            id="a size with B",
        ),
        pytest.param(
            RUN.replace("digits:train", "digits.py:train"),
            [
                '6: spec.training.function is "examples.digits.py:train": names a file; name its '
                "module, without .py, such as train:main"
            ],
            id="a file for a module",
        ),
        pytest.param(
            RUN + "  podTemplate:\n    spec:\n      containers:\n      - name: ray-worker\n"
            "        imagee: a\n      nodeSelector: {imagee: b}\n"
            "  workers:\n    podTemplate:\n      nodeSelector: {a: b}\n",
            [
                "16: spec.workers.podTemplate.nodeSelector is not a field of a pod; there are "
                "metadata, spec",
                "12: spec.podTemplate.spec.containers[0].imagee is not a field of a pod; did you "
                "mean image?",
            ],
            id="fields that pods do not have",
        ),
        pytest.param(
            RUN.replace('train"}', 'train", env: [{name: A, valueFrom: {secretKey: {a: b}}}]}'),
            [
                "6: spec.training.env[0].valueFrom.secretKey is not a field of a pod; did you "
                "mean secretKeyRef?"
            ],
            id="a source that no variable has",
        ),
    ],
)
def test_what_users_mistake_is_said_with_its_line_and_what_to_write(
    file: Path, text: str, sentences: list[str]
) -> None:
    file.write_text(text)
    code, output, errors = call("validate", file)
    assert (code, output) == (1, "")
    assert errors.splitlines() == [f"{file}:{sentence}" for sentence in sentences]


@pytest.mark.parametrize(
    ("typed", "completion"),
    [
        ("trainingrun wat", "watch"),
        ("trainingrun render --plat", "--platform"),
        ("trainingrun render --platform gk", "gke"),
    ],
    ids=["command", "option", "platform"],
)
def test_the_shell_completes_commands_and_options(typed: str, completion: str) -> None:
    environment = {
        "_TRAININGRUN_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(typed.count(" ")),
    }
    result = CliRunner().invoke(app, [], prog_name="trainingrun", env=environment)
    assert result.output.split() == [completion]
