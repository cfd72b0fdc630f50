"""The samples of a batch, loaded with random numbers of the batch's own."""

from typing import Any

from .. import random_numbers


def loaded(dataset: Any, number: int, indices: list[int]) -> Any:
    """The samples, in whatever process this is.

    Args:
        dataset: one with `__getitem__`, or with `__getitems__`, which gets all indices at once.
        number: the random numbers that are drawn meanwhile follow from it.
        indices: of the samples.
    """
    many = getattr(dataset, "__getitems__", None)
    with random_numbers.borrowed(number):
        return many(indices) if many else [dataset[i] for i in indices]
