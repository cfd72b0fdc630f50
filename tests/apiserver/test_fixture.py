import pytest

from support.apiserver import ApiError, ApiServer


def test_rbac_is_on(apiserver: ApiServer):
    with pytest.raises(ApiError, match="forbidden") as refused:
        apiserver.request("GET", "/api/v1/nodes", as_user="nobody")
    assert refused.value.code == 403
