from decimal import Decimal

import pytest

from trainingrun.api.quantities import amount


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("4", Decimal(4)),
        ("500m", Decimal("0.5")),
        ("0.5", Decimal("0.5")),
        ("2k", Decimal(2000)),
        ("1Ki", Decimal(1024)),
        ("1M", Decimal(10**6)),
        ("1Mi", Decimal(2**20)),
        ("1.5Gi", Decimal(3 * 2**29)),
        ("1P", Decimal(10**15)),
        ("1Pi", Decimal(2**50)),
    ],
)
def test_a_quantity_has_an_amount(quantity: str, number: Decimal):
    assert amount(quantity) == number


@pytest.mark.parametrize("text", ["", "4 Gi", "-1", "1e3", "1GB", "Gi", ".5", "1K"])
def test_anything_else_is_refused(text: str):
    with pytest.raises(ValueError, match="is not a quantity such as 500m, 4 or 16Gi"):
        amount(text)
