"""YAML means to the command line what it means to a real API server, which reads it as kubectl."""

import json
import textwrap

import pytest

from support.apiserver import ApiError, ApiServer
from support.yaml_rows import REFUSED, ROWS
from trainingrun.client import yaml_text

RUN = """\
apiVersion: trainingrun.dev/v1alpha1
kind: TrainingRun
metadata: {name: digits}
spec:
  suspend: true
  training:
    function: examples.digits:train
    config:
"""
STORAGE = '  storage: {uri: "s3://runs/tests"}\n'
YAML = "application/yaml"


def run_with(texts: list[str]) -> str:
    """A run whose config has each text's document below a key of its own."""
    parts = [f"r{n}:\n{textwrap.indent(text, '  ')}\n" for n, text in enumerate(texts)]
    return RUN + textwrap.indent("".join(parts), 6 * " ") + STORAGE


def create(apiserver: ApiServer, namespace: str, text: str) -> dict:
    path = f"/apis/trainingrun.dev/v1alpha1/namespaces/{namespace}/trainingruns"
    return apiserver.request("POST", path, text, YAML)


def test_a_config_has_the_same_values_here_and_on_a_cluster(
    apiserver: ApiServer, namespace: str
) -> None:
    text = run_with([text for text, _ in ROWS])
    stored = create(apiserver, namespace, text)["spec"]["training"]["config"]
    read = yaml_text.value(text)["spec"]["training"]["config"]
    assert json.dumps(stored, sort_keys=True) == json.dumps(read, sort_keys=True)
    meant = {f"r{n}": meaning for n, (_, meaning) in enumerate(ROWS)}
    assert json.dumps(stored, sort_keys=True) == json.dumps(meant, sort_keys=True)


def test_what_is_printed_is_stored_as_what_it_was(apiserver: ApiServer, namespace: str) -> None:
    texts = [text.removeprefix("a: ") for text, _ in ROWS]
    run = yaml_text.value(RUN + "      a: b\n" + STORAGE)
    run["spec"]["training"]["config"] = {"texts": texts, "keys": dict.fromkeys(texts, 1)}
    stored = create(apiserver, namespace, yaml_text.dump(run))
    assert stored["spec"]["training"]["config"] == run["spec"]["training"]["config"]


@pytest.mark.parametrize("text", REFUSED, ids=repr)
def test_what_is_refused_here_is_refused_there(
    apiserver: ApiServer, namespace: str, text: str
) -> None:
    with pytest.raises(ApiError) as refused:
        create(apiserver, namespace, run_with([text]))
    assert refused.value.code == 400
