from decimal import Decimal

import pytest

from trainingrun.api.quantities import amount


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        pytest.param("4", Decimal(4), id="whole"),
        pytest.param("500m", Decimal("0.5"), id="milli"),
        pytest.param("0.5", Decimal("0.5"), id="decimal"),
        pytest.param("2k", Decimal(2000), id="k"),
        pytest.param("1Ki", Decimal(1024), id="Ki"),
        pytest.param("1M", Decimal(10**6), id="M"),
        pytest.param("1Mi", Decimal(2**20), id="Mi"),
        pytest.param("1.5Gi", Decimal(3 * 2**29), id="decimal Gi"),
        pytest.param("1P", Decimal(10**15), id="P"),
        pytest.param("1Pi", Decimal(2**50), id="Pi"),
    ],
)
def test_a_quantity_has_an_amount(quantity: str, number: Decimal):
    assert amount(quantity) == number


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("4 Gi", id="space"),
        pytest.param("-1", id="negative"),
        pytest.param("1e3", id="exponent"),
        pytest.param("1GB", id="GB"),
        pytest.param("Gi", id="unit alone"),
        pytest.param(".5", id="no digit before the point"),
        pytest.param("1K", id="K"),
    ],
)
def test_anything_else_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a quantity such as 500m, 4 or 16Gi"):
        amount(text)
