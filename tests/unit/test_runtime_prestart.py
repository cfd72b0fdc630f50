"""A prestarted process: its runtime environment, and what it imports before it is a rank."""

import json
from pathlib import Path

import pytest

from support import prestarted_imports
from trainingrun_runtime.ray_internals.prestart import extended
from trainingrun_runtime.worker import prestarted_worker


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


_PACKAGES = ("joblib", "pandas", "scipy.stats", "sklearn.datasets", "sklearn.model_selection")


def test_a_prestarted_process_reads_nothing_of_a_rank_and_imports_nothing_of_the_user(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit")
    found = prestarted_imports.imports(
        tmp_path, [*_PACKAGES, "mine", "support.kills_itself", "not.there"]
    )
    prestarted_imports.require_nothing_of_a_rank(found)
    assert set(_PACKAGES) <= set(found["packages"])
    assert (tmp_path / prestarted_worker.IMPORTED).exists()
