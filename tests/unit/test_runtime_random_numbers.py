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
