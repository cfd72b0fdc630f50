"""Kubernetes quantities as numbers."""

import re
from decimal import ROUND_CEILING, Decimal

_SUFFIXES = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(10) ** 3,
    "M": Decimal(10) ** 6,
    "G": Decimal(10) ** 9,
    "T": Decimal(10) ** 12,
    "P": Decimal(10) ** 15,
    "Ki": Decimal(2) ** 10,
    "Mi": Decimal(2) ** 20,
    "Gi": Decimal(2) ** 30,
    "Ti": Decimal(2) ** 40,
    "Pi": Decimal(2) ** 50,
}

_QUANTITY = re.compile(rf"([0-9]+(?:\.[0-9]+)?)({'|'.join(_SUFFIXES)})")


def whole(quantity: str) -> int:
    """A quantity such as `500m`, `4` or `16Gi` in its base unit (cores, bytes), rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    parts = _QUANTITY.fullmatch(quantity)
    if parts is None:
        raise ValueError(f"{quantity!r} is no quantity; write one such as 500m, 4 or 16Gi")
    exact = Decimal(parts[1]) * _SUFFIXES[parts[2]]
    return int(exact.to_integral_value(rounding=ROUND_CEILING))
