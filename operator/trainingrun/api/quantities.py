"""Kubernetes quantities, such as `500m`, `4` or `16Gi`, as far as they are taken here."""

import json
import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, get_args, get_origin

from pydantic import BeforeValidator, Field
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic.json_schema import WithJsonSchema

from .base import Model, Rule, inherited

PATTERN = r"[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?"
MAX_LENGTH = 32

FACTORS = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("num", -3)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
"""What each unit of Kubernetes stands for; `PATTERN` has those that are taken here."""


def _from_integer(value: Any) -> Any:
    # `cpu: 4` is what everybody writes, and what Kubernetes itself takes.
    return str(value) if type(value) is int else value


_SCHEMA = WithJsonSchema(
    {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "x-kubernetes-int-or-string": True,
        "maxLength": MAX_LENGTH,
    }
)

Quantity = Annotated[str, Field(max_length=MAX_LENGTH), BeforeValidator(_from_integer), _SCHEMA]
"""A positive Kubernetes quantity, such as `500m`, `4` or `16Gi`."""


def amount(quantity: str) -> Decimal:
    """A quantity in its base unit: cores, or bytes.

    Raises:
        ValueError: it is not one.
    """
    if not re.fullmatch(PATTERN, quantity):
        raise ValueError(f"{quantity!r} is not a quantity such as 500m, 4 or 16Gi")
    digits = quantity.rstrip("kKmMGTPi")
    return Decimal(digits) * FACTORS[quantity[len(digits) :]]


def measure(quantity: Any) -> float:
    """A quantity that the API server gives, in its base unit; one of a rare form counts as 0."""
    try:
        return float(amount(str(quantity)))
    except ValueError:
        return 0.0


def times(quantity: str, number: int) -> str:
    """So many times a quantity, in the same unit; once: unchanged.

    Raises:
        ValueError: it is not one.
    """
    if number == 1:
        return quantity
    amount(quantity)
    digits = quantity.rstrip("kKmMGTPi")
    return f"{_plain(Decimal(digits) * number)}{quantity[len(digits) :]}"


def more_cores(cores: str, number: int) -> str:
    """A quantity of cores and so many whole ones more; none more: unchanged."""
    if number == 0:
        return cores
    millicores = (amount(cores) + number) * 1000
    return _plain(millicores / 1000) if millicores % 1000 == 0 else f"{_plain(millicores)}m"


def _plain(number: Decimal) -> str:
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def unchanged(annotation: Any, path: str) -> str:
    """CEL: whether what is at `path` is as it was, with quantities compared by their values.

    `cpu: "4"` is `cpu: 4`, whichever of the two a client writes. A field that is inherited is as it
    was if it now has, or had, its default: an earlier CRD wrote that into every run.

    Args:
        annotation: The type of the field.
        path: Where it is below `self` and `oldSelf`.
    """
    one, other = f"self.{path}", f"oldSelf.{path}"
    if _is_quantity(annotation):
        same = (
            f"({one} == {other} || (isQuantity(string({one})) && isQuantity(string({other})) && "
            f"quantity(string({one})).compareTo(quantity(string({other}))) == 0))"
        )
    elif (model := _compared(annotation)) is not None:
        fields = model.model_fields.values()
        same = f"({' && '.join(_field_unchanged(f, f'{path}.{f.alias}') for f in fields)})"
    else:
        same = f"{one} == {other}"
    return f"has({one}) == has({other}) && (!has({one}) || {same})"


def _field_unchanged(field: FieldInfo, path: str) -> str:
    same = unchanged(_typed(field), path)
    if field.json_schema_extra is not inherited:
        return same
    one, other, default = f"self.{path}", f"oldSelf.{path}", json.dumps(field.default)
    if _is_quantity(_typed(field)):  # of which an integer is one, too
        is_default = (f"string({one}) == {default}", f"string({other}) == {default}")
    else:
        is_default = (f"{one} == {default}", f"{other} == {default}")
    return f"({same} || (has({one}) ? !has({other}) && {is_default[0]} : {is_default[1]}))"


def _typed(field: FieldInfo) -> Any:
    return Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation


def _is_quantity(annotation: Any) -> bool:
    return _SCHEMA in getattr(annotation, "__metadata__", ()) or any(
        _SCHEMA in getattr(one, "__metadata__", ()) for one in get_args(annotation)
    )


def _compared(annotation: Any) -> type[Model] | None:
    """The model whose fields are compared one by one, for some of them are not equal by `==`."""
    options = () if get_origin(annotation) is list else get_args(annotation)
    for model in (annotation, *options):
        if isinstance(model, type) and issubclass(model, Model):
            fields = model.model_fields.values()
            if any(
                field.json_schema_extra is inherited
                or _is_quantity(_typed(field))
                or _compared(_typed(field)) is not None
                for field in fields
            ):
                return model
    return None


def at_least(field: str, least: str, message: str) -> Rule:
    """The rule that a quantity, where it is set, is well formed and not less than `least`."""
    name = to_camel(field)
    cel = (
        f"!has(self.{name}) || (string(self.{name}).matches(r'^({PATTERN})$') && "
        f"quantity(string(self.{name})).compareTo(quantity('{least}')) >= 0)"
    )

    def holds(model: Any) -> bool:
        value = getattr(model, field)
        return value is None or bool(
            re.fullmatch(PATTERN, value) and amount(value) >= amount(least)
        )

    return Rule(cel, message, holds, field)


def not_more(field: str, limit: str, message: str) -> Rule:
    """The rule that one quantity, where it is set, is not more than another field's.

    Holds where one of them is malformed: another rule refuses that.
    """
    one, other = f"string(self.{to_camel(field)})", f"string(self.{to_camel(limit)})"
    cel = (
        f"!has(self.{to_camel(field)}) || !isQuantity({one}) || !isQuantity({other}) || "
        f"quantity({one}).compareTo(quantity({other})) <= 0"
    )

    def holds(model: Any) -> bool:
        values = getattr(model, field), getattr(model, limit)
        if not all(value and re.fullmatch(PATTERN, value) for value in values):
            return True
        return amount(values[0]) <= amount(values[1])

    return Rule(cel, message, holds, field)


def whole(quantity: str) -> int:
    """A quantity such as `500m`, `4` or `16Gi` in its base unit (cores, bytes), rounded up.

    Raises:
        ValueError: it is no quantity.
    """
    return int(amount(quantity).to_integral_value(rounding=ROUND_CEILING))
