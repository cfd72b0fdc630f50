"""The models give the same verdicts as the API server, on the same table."""

import pytest

from support.constraint_rows import ROWS
from support.constraints import Row, constraints, fields, manifest_with
from trainingrun.api.parse import InvalidRunError, parse
from trainingrun.api.v1alpha1 import IMMUTABLE

WRONG_TYPE = {
    "object": "text",
    "array": "text",
    "string": 1,
    "integer": "1",
    "boolean": "yes",
    "number": "1",
    "quantity": 0.5,
}


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_models_accept_what_is_just_right(row: Row):
    parse(row.accepted)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_models_refuse_what_is_just_wrong(row: Row):
    with pytest.raises(InvalidRunError) as refused:
        parse(row.refused)
    assert row.path.replace("[]", "[0]").removesuffix("[0]") in str(refused.value)
    if row.keyword == "rule":
        assert row.says in str(refused.value)


@pytest.mark.parametrize(("path", "kind"), fields(), ids=lambda part: part)
def test_the_models_refuse_a_value_of_the_wrong_type(path: str, kind: str):
    with pytest.raises(InvalidRunError) as refused:
        parse(manifest_with(path, WRONG_TYPE[kind]))
    assert path.replace("[]", "[0]").removesuffix("[0]") in str(refused.value)


def test_every_constraint_of_the_crd_is_in_the_table():
    def is_tried(path: str, keyword: str, message: str) -> bool:
        return any(
            (row.path, row.keyword) == (path, keyword)
            and (keyword != "rule" or row.says in message)
            for row in ROWS
        )

    immutable = {f"{field} cannot change after creation" for field in IMMUTABLE}
    missing = [
        (path, keyword, message)
        for path, keyword, message in constraints()
        if not is_tried(path, keyword, message) and message.split(";")[0] not in immutable
    ]
    assert missing == []


def test_the_table_holds_no_constraint_that_is_gone():
    known = {(path, keyword) for path, keyword, _ in constraints()}
    assert {(row.path, row.keyword) for row in ROWS} <= known
