"""A booster of a checkpoint answers as it did in the training."""

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost

from support.checkpoints import put
from support.sharded_checkpoints import save
from trainingrun_runtime.frameworks.lightgbm import _KeptBooster as KeptLightGBM
from trainingrun_runtime.frameworks.lightgbm import load as load_lightgbm
from trainingrun_runtime.frameworks.xgboost import _KeptBooster as KeptXGBoost
from trainingrun_runtime.frameworks.xgboost import load as load_xgboost
from trainingrun_runtime.store.bucket import Bucket
from trainingrun_runtime.store.lease import Lease

ROWS = np.random.default_rng(0).normal(size=(200, 5))
LABELS = (ROWS[:, 0] > 0).astype(np.float32)


def with_xgboost(rounds: int) -> tuple[Any, Any]:
    """What the session keeps after so many rounds, and what the booster answers then."""
    kept = KeptXGBoost({})
    matrix = xgboost.DMatrix(ROWS, LABELS)
    kept.booster = xgboost.train({"objective": "binary:logistic"}, matrix, rounds)
    return kept, kept.booster.predict(matrix)


def with_lightgbm(rounds: int) -> tuple[Any, Any]:
    """Likewise."""
    kept = KeptLightGBM()
    params = {"objective": "binary", "verbosity": -1}
    kept.booster = lightgbm.train(params, lightgbm.Dataset(ROWS, LABELS), rounds)
    return kept, kept.booster.predict(ROWS)


def of_xgboost(uri: str) -> Any:
    return load_xgboost(uri).predict(xgboost.DMatrix(ROWS))


def of_lightgbm(uri: str) -> Any:
    return load_lightgbm(uri).predict(ROWS)


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    """The folder of a run."""
    found = Bucket.open(f"file://{tmp_path}/run")
    Lease.take(found, 1, "pod", 1000)
    return found


def commit(bucket: Bucket, folder: Path, step: int, kept: Any) -> str:
    """A checkpoint of that step; its URI."""
    folder.mkdir()
    save(folder, 1, lambda rank: {"booster": kept})
    return bucket.uri(put(bucket, folder, step, step).path)


@pytest.mark.parametrize(
    ("trained", "answers"),
    [
        pytest.param(with_xgboost, of_xgboost, id="xgboost"),
        pytest.param(with_lightgbm, of_lightgbm, id="lightgbm"),
    ],
)
def test_a_booster_is_loaded_from_a_checkpoint_and_from_the_newest_one_of_a_run(
    trained: Any, answers: Any, bucket: Bucket, tmp_path: Path
) -> None:
    kept, early = trained(2)
    former = commit(bucket, tmp_path / "2", 2, kept)
    kept, late = trained(9)
    commit(bucket, tmp_path / "9", 9, kept)
    assert not np.allclose(early, late)
    np.testing.assert_allclose(answers(bucket.root), late, rtol=1e-6)
    np.testing.assert_allclose(answers(former), early, rtol=1e-6)


@pytest.mark.parametrize(
    ("kept", "load"),
    [
        pytest.param(KeptXGBoost({}), load_xgboost, id="xgboost"),
        pytest.param(KeptLightGBM(), load_lightgbm, id="lightgbm"),
    ],
)
def test_a_checkpoint_before_the_first_round_is_named(
    kept: Any, load: Any, bucket: Bucket, tmp_path: Path
) -> None:
    uri = commit(bucket, tmp_path / "0", 0, kept)
    with pytest.raises(ValueError, match=f"no round of boosting is in {uri}; name a later"):
        load(bucket.root)
