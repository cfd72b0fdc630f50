"""Kubernetes quantities as numbers."""

from decimal import Decimal

_SUFFIXES = {
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


def number(quantity: str) -> float:
    """A quantity such as `500m`, `4` or `16Gi` in its base unit: cores, or bytes."""
    digits = quantity.rstrip("kKmMgGiTtPp")
    suffix = quantity[len(digits) :]
    # Decimal: 0.1 * 3 cores must not become 0.30000000000000004 of them for Ray.
    return float(Decimal(digits) * (_SUFFIXES[suffix] if suffix else 1))
