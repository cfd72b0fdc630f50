from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.pod_fields import TEMPLATES
from trainingrun.api import generate
from trainingrun.api.crd import crd
from trainingrun.api.pods_spec import Workers
from trainingrun.api.status import RunStatus
from trainingrun.api.v1alpha1 import RunSpec

REPOSITORY = Path(__file__).parents[2]
FILES = generate.generated()


def nodes(path: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, node
    for name, child in node.get("properties", {}).items():
        yield from nodes(f"{path}.{name}", child)
    if "items" in node:
        yield from nodes(f"{path}[]", node["items"])


ROOT = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
NODES = dict(nodes("", ROOT))


@pytest.mark.parametrize(
    "path", sorted(path for path in NODES if path.startswith((".spec", ".status")))
)
def test_every_field_has_a_description(path: str):
    if not path.endswith("[]"):
        assert NODES[path].get("description")


@pytest.mark.parametrize("node", NODES.values(), ids=NODES)
def test_the_schema_is_structural(node: dict[str, Any]):
    assert not {"$ref", "$defs", "title", "const", "additionalProperties", "allOf"} & node.keys()
    assert node.get("default", "") is not None
    untyped = {"x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"}
    assert "type" in node or untyped & node.keys()


def test_integers_have_a_format_that_holds_them():
    assert NODES[".spec.workers.count"]["format"] == "int32"
    assert NODES[".status.observedGeneration"]["format"] == "int64"


def test_lists_of_named_things_are_merged_by_their_names():
    keys = {
        path: node["x-kubernetes-list-map-keys"]
        for path, node in NODES.items()
        if "x-kubernetes-list-map-keys" in node
    }
    assert keys == {
        ".spec.training.env": ["name"],
        **{
            f".spec.{place}.spec.{items}": ["name"]
            for place in TEMPLATES
            for items in ("containers", "containers[].env", "volumes")
        },
        ".spec.sweep.space": ["name"],
        ".status.conditions": ["type"],
        ".status.attempts": ["number"],
        ".status.failureRules": ["rule"],
        ".status.excludedNodes": ["node"],
        ".status.disruptions.history": ["number"],
        ".status.progress.ranks": ["rank"],
        ".status.workers.sizes": ["workers"],
        ".status.hang.ranks": ["rank"],
        ".status.capacity.workers": ["pod"],
        ".status.result.trials": ["number"],
        ".status.sweep.trials": ["number"],
    }


def test_defaults_are_those_of_the_models_and_never_in_the_status():
    assert (
        NODES[".spec.workers.count"]["default"]
        == RunSpec.model_fields["workers"].get_default(call_default_factory=True).count
    )
    assert NODES[".spec.workers"]["default"] == {}
    assert not [path for path, node in NODES.items() if "default" in node and ".status." in path]


def test_a_field_that_earlier_operators_do_not_know_is_added_to_no_stored_run():
    assert "default" not in NODES[".spec.workers.perPod"]
    assert "default" not in NODES[".spec.workers.resizeSeconds"]
    assert Workers.model_validate({"count": 3}).per_pod == 1


def test_every_field_of_the_models_is_in_the_schema():
    for path, model in ((".spec", RunSpec), (".status", RunStatus)):
        assert NODES[path]["properties"].keys() == {f.alias for f in model.model_fields.values()}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_generated_files_are_up_to_date(path: Path):
    assert (REPOSITORY / path).read_text() == FILES[path], "run: make generate"


@pytest.mark.parametrize("path", ["docs/api.md", "docs/conditions.md"])
def test_check_names_the_file_that_differs(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(generate, "generated", lambda: FILES)
    monkeypatch.chdir(tmp_path)
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    (tmp_path / path).write_text("edited by hand")
    assert generate.main(["--check"]) == 1
    assert f"{path} is not what the models say; run: make generate" in capsys.readouterr().err


def test_the_reference_names_every_field():
    page = FILES[Path("docs/api.md")]
    missing = [
        path
        for path in NODES
        if path.startswith(".spec.")
        and not path.endswith("[]")
        and ".podTemplate." not in path  # Kubernetes' own fields
        and f"| `{path.rsplit('.', 1)[1]}` |" not in page
    ]
    assert missing == []
