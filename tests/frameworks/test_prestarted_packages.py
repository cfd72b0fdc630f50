"""Frameworks that a prestarted process imports before it is a rank."""

from pathlib import Path

import pytest

from support import prestarted_imports


@pytest.mark.parametrize(
    "names",
    [
        ["accelerate", "accelerate.accelerator"],
        ["transformers", "transformers.trainer", "transformers.models.bert.modeling_bert"],
        ["xgboost", "xgboost.sklearn"],
    ],
    ids=lambda names: names[0],
)
def test_it_reads_nothing_of_a_rank_when_it_is_imported(tmp_path: Path, names: list[str]) -> None:
    found = prestarted_imports.imports(tmp_path, names)
    prestarted_imports.require_nothing_of_a_rank(found)
    assert set(names) <= set(found["packages"])


def test_lightning_reads_its_rank_and_is_left_to_the_rank(tmp_path: Path) -> None:
    found = prestarted_imports.imports(tmp_path, ["lightning.pytorch"])
    prestarted_imports.require_nothing_of_a_rank(found)
    assert not [name for name in found["packages"] if name.startswith("lightning")]
