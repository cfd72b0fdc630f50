from decimal import Decimal

import pytest

from trainingrun.api.quantities import amount, more_cores, times


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


@pytest.mark.parametrize(
    ("quantity", "number", "product"),
    [
        pytest.param("04.0", 1, "04.0", id="once is unchanged"),
        pytest.param("4", 8, "32", id="whole"),
        pytest.param("500m", 8, "4000m", id="milli"),
        pytest.param("0.5", 8, "4", id="decimal that becomes whole"),
        pytest.param("0.3", 4, "1.2", id="decimal"),
        pytest.param("100", 10, "1000", id="zeros stay"),
        pytest.param("1.5Gi", 3, "4.5Gi", id="decimal Gi"),
    ],
)
def test_several_times_a_quantity(quantity: str, number: int, product: str):
    assert times(quantity, number) == product
    assert amount(product) == amount(quantity) * number


@pytest.mark.parametrize(
    ("cores", "number", "total"),
    [
        pytest.param("04.0", 0, "04.0", id="none more is unchanged"),
        pytest.param("4", 16, "20", id="whole"),
        pytest.param("500m", 2, "2500m", id="milli"),
        pytest.param("4000m", 6, "10", id="milli that becomes whole"),
        pytest.param("1k", 1, "1001", id="k"),
    ],
)
def test_a_few_cores_more(cores: str, number: int, total: str):
    assert more_cores(cores, number) == total
    assert amount(total) == amount(cores) + number
