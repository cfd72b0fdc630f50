"""The runtime environment of a prestarted process, as text: that of the actor that is to get it."""

import json

import pytest

from trainingrun_runtime.ray_internals.prestart import extended


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param(
            '{"env_vars":{"B":"1"},"pip":{"packages":["x"]}}',
            '{"env_vars":{"A":"ä","B":"2"},"pip":{"packages":["x"]}}',
            id="merged as Ray's C++ does",
        ),
        pytest.param(
            '{"working_dir":"z"}',
            '{"env_vars":{"A":"ä","B":"2"},"working_dir":"z"}',
            id="first variables",
        ),
    ],
)
def test_variables_are_added_to_the_creators_environment(environment: str, expected: str) -> None:
    assert extended(environment, {"B": "2", "A": "ä"}) == expected


@pytest.mark.parametrize("environment", ["", "{}"])
def test_without_a_creators_environment_it_is_what_python_writes(environment: str) -> None:
    from ray.runtime_env import RuntimeEnv

    found = extended(environment, {"A": "1"})
    assert found == RuntimeEnv(env_vars={"A": "1"}).serialize()
    assert json.loads(found) == {"env_vars": {"A": "1"}}
