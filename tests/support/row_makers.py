"""Rows for constraints of one kind, each for the field at a path."""

from typing import Any

from support.constraints import MISSING, Row


def in_range(path: str, least: int, most: int) -> list[Row]:
    lower = f"should be greater than or equal to {least}"
    upper = f"should be less than or equal to {most}"
    return [
        Row(path, "minimum", least, least - 1, lower),
        Row(path, "maximum", most, most + 1, upper),
    ]


def one_of(path: str, bad: str, *options: str) -> list[Row]:
    says = ", ".join(f'"{option}"' for option in options)
    return [Row(path, "enum", option, bad, f"supported values: {says}") for option in options]


def max_length(path: str, most: int, start: str = "") -> Row:
    good = start + "a" * (most - len(start))
    return Row(path, "maxLength", good, good + "a", f"may not be more than {most} bytes")


def max_quantity_length(path: str, quantity: str) -> Row:
    longest, too_long = quantity.rjust(32, "0"), quantity.rjust(33, "0")
    return Row(path, "maxLength", longest, too_long, "may not be more than 32 bytes")


def required(path: str, good: Any) -> Row:
    return Row(path, "required", good, MISSING, "Required value")


def by_rule(path: str, says: str, good: list[Any], bad: list[Any], at: str = "") -> list[Row]:
    longest = max(len(good), len(bad))
    pad = [*good, *good[-1:] * (longest - len(good))], [*bad, *bad[-1:] * (longest - len(bad))]
    return [Row(path, "rule", ok, wrong, says, at) for ok, wrong in zip(*pad, strict=True)]
