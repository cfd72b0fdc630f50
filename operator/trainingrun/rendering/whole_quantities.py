"""Kubernetes quantities as whole numbers."""

from decimal import ROUND_CEILING

from ..api.quantities import amount


def whole(quantity: str) -> int:
    """A quantity such as `500m`, `4` or `16Gi` in its base unit (cores, bytes), rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    return int(amount(quantity).to_integral_value(rounding=ROUND_CEILING))
