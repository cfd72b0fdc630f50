"""What a user's YAML means to the command line: what it means to kubectl."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.cli_server import call
from support.yaml_rows import REFUSED, ROWS
from trainingrun.client import yaml_text


@pytest.mark.parametrize(("text", "meaning"), ROWS, ids=[repr(text) for text, _ in ROWS])
def test_a_text_means_what_it_means_to_kubectl(text: str, meaning: Any) -> None:
    found = yaml_text.value(text)
    assert json.dumps(found, sort_keys=True) == json.dumps(meaning, sort_keys=True)


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_what_kubectl_does_not_read_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(yaml_text.NotYamlError) as refused:
        yaml_text.value(text)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line", "sentence"),
    [
        pytest.param(
            "a: 1\nb: 2\na: 3\n",
            3,
            "a is set twice, also in line 1; leave one of them out",
            id="of the document",
        ),
        pytest.param(
            "a:\n  - {b: 1,\n     b: 2}\n",
            3,
            "b is set twice, also in line 2; leave one of them out",
            id="below a list",
        ),
        pytest.param(
            "yes: 1\non: 2\n",
            2,
            "true is set twice, also in line 1; leave one of them out",
            id="written in two ways",
        ),
    ],
)
def test_a_key_that_is_set_twice_is_refused(text: str, line: int, sentence: str) -> None:
    with pytest.raises(yaml_text.NotYamlError) as refused:
        yaml_text.value(text)
    assert (refused.value.line, str(refused.value)) == (line, sentence)


@pytest.mark.parametrize("text", ["9" * 5000, "-" + "1_0" * 2000, "+" + "9" * 5000], ids=len)
def test_a_number_of_more_digits_than_python_reads_is_a_text_as_to_kubectl(text: str) -> None:
    assert yaml_text.value(text) == text
    written = yaml_text.dump({"config": {"seed": text, text: 1}})
    assert yaml_text.value(written) == {"config": {"seed": text, text: 1}}


def test_aliases_of_aliases_are_bounded() -> None:
    lines = ["a0: &a0 [" + ", ".join("x" * 10) + "]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(yaml_text.NotYamlError, match="values; use fewer aliases"):
        yaml_text.value("\n".join(lines))


def test_what_is_nested_too_deeply_is_refused() -> None:
    with pytest.raises(yaml_text.NotYamlError, match="is nested too deeply"):
        yaml_text.value(1000 * "[" + 1000 * "]")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 2),
        (("spec",), 4),
        (("spec", "workers", "count"), 6),
        (("spec", "env", 1, "name"), 9),
        (("spec", "env", 5), 7),
        (("spec", "storage", "uri"), 4),
    ],
)
def test_a_field_that_is_missing_has_the_line_of_what_it_is_missing_from(
    path: tuple[str | int, ...], line: int
) -> None:
    text = (
        "# a comment\na: 1\n\nspec:\n  workers:\n    count: 1\n  env:\n  - name: A\n  - name: B\n"
    )
    (found,) = yaml_text.documents(text)
    assert found.line(path) == line


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])) | st.sampled_from(
    [text.removeprefix("a: ") for text, _ in ROWS]
)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
)


@given(DATA)
def test_what_is_printed_is_read_as_what_it_was(data: Any) -> None:
    assert yaml_text.value(yaml_text.dump(data)) == data


RUN = """
apiVersion: trainingrun.dev/v1alpha1
kind: TrainingRun
metadata: {name: digits}
spec:
  training:
    function: examples.digits:train
    config: {lr: 3e-4, clock: 12:30:00, nesterov: yes, label: "3e-4"}
    env: [{name: LR, value: "3e-4"}]
  storage: {uri: "s3://runs/demo"}
"""


def test_a_config_is_rendered_with_the_values_that_a_cluster_gets(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    code, output, _ = call("render", str(file))
    config = r'"config":{"lr":0.0003,"clock":"12:30:00","nesterov":true,"label":"3e-4"}'
    assert code == 0
    assert config in output
    assert "value: '3e-4'" in output  # kubectl would read a number, and refuse it
