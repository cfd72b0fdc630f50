import pytest

from support.apiserver import ApiError, ApiServer, said
from support.constraint_rows import ROWS
from support.constraints import Row, fields, manifest_with

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
def test_the_api_server_accepts_what_is_just_right(apiserver: ApiServer, row: Row):
    apiserver.create(row.accepted, dry_run=True)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_api_server_refuses_what_is_just_wrong_and_says_what_to_write(
    apiserver: ApiServer, row: Row
):
    with pytest.raises(ApiError) as refused:
        apiserver.create(row.refused, dry_run=True)
    assert refused.value.code == 422
    assert row.says in said(refused.value)
    # List items are named by their index.
    assert row.path.replace("[]", "[0]").removesuffix("[0]") in str(refused.value)


@pytest.mark.parametrize(("path", "kind"), fields(), ids=lambda part: part)
def test_the_api_server_refuses_a_value_of_the_wrong_type(
    apiserver: ApiServer, path: str, kind: str
):
    with pytest.raises(ApiError, match=r"must be of type|type.*invalid|Invalid value"):
        apiserver.create(manifest_with(path, WRONG_TYPE[kind]), dry_run=True)
