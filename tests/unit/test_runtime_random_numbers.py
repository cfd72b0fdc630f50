"""Random numbers that follow from a seed and a place."""

import random

import numpy as np
import torch

from trainingrun_runtime import random_numbers


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), float(np.random.rand()), random.random()


def test_all_libraries_draw_the_same_at_the_same_place_whatever_was_drawn_before() -> None:
    first = random_numbers.derive(1, "step", 7, 0, 0)
    random_numbers.begin(first)
    once = drawn()
    drawn()
    random_numbers.begin(first)
    assert drawn() == once


def test_every_seed_step_and_rank_has_numbers_of_its_own() -> None:
    places = [
        (1, "step", 7, 0, 0),
        (2, "step", 7, 0, 0),
        (1, "step", 8, 0, 0),
        (1, "step", 7, 0, 1),
    ]
    seen = set()
    for seed, *place in places:
        random_numbers.begin(random_numbers.derive(int(seed), *place))
        seen.add(drawn())
    assert len(seen) == len(places)


def numbers_of(rank: int) -> dict[str, tuple[float, float, float]]:
    """What a rank draws at each kind of place."""
    found, of = {}, random_numbers.StepRandom(1, rank)
    for place in ("session", "epoch", "between steps"):
        of.begin(place, 3, 1)
        found[place] = drawn()
    of.begin_step(3, 1)
    return {**found, "step": drawn()}


def test_ranks_draw_the_same_outside_of_steps_and_their_own_in_them() -> None:
    """A split of the data would put samples that one rank trains on into another's validation."""
    one, other = numbers_of(0), numbers_of(1)
    assert one.pop("step") != other.pop("step")
    assert one == other
    assert len({*one.values()}) == len(one)
