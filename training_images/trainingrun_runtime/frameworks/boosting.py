"""What the sessions of XGBoost and of LightGBM have in common: the booster as their object."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .. import results
from ..checkpoints.stateful_objects import KeptState
from ..survivors.watched_tensors import NotCovered, NotWhole


class KeptBooster(KeptState):
    """The booster as an object of the session.

    A round adds trees to the former ones and leaves those as they are, so the first rounds of a
    booster are what it was after them.
    """

    keeps_former = True

    def __init__(self) -> None:
        self.booster: Any = None
        """None: no round is done."""
        self._covered: Any = None

    def rounds_of(self, booster: Any) -> int:
        """How many a booster has."""
        raise NotImplementedError

    def require_growing(self, booster: Any) -> None:
        """Make sure that a round changes nothing of the former ones.

        Raises:
            NotCovered: it does.
        """
        raise NotImplementedError

    def content_of(self, booster: Any, rounds: int) -> Callable[[], dict[str, Any]]:
        """Tells the state of a booster that has these rounds, also once it has more of them."""
        raise NotImplementedError

    def kept(self) -> Callable[[], dict[str, Any]]:
        """See `KeptState`."""
        booster = self.booster
        if booster is None:
            raise NotCovered("there is no booster yet")
        if self._covered is not booster:
            self.require_growing(booster)
            self._covered = booster
        rounds = self.rounds_of(booster)
        content_then = self.content_of(booster, rounds)

        def state_then() -> dict[str, Any]:
            now = self.rounds_of(booster)
            content = content_then()
            # A round that ends meanwhile adds its trees where these are read; and early stopping
            # leaves the best rounds alone.
            if self.rounds_of(booster) != now or now < rounds:
                raise NotWhole(f"the number of rounds changed while {rounds} of them were read")
            return content

        return state_then

    def alone(self) -> Any:
        """See `KeptState`: all ranks make the same trees, of sums over all of them."""
        return self.rounds_of(self.booster)


def load(kept: KeptBooster, uri: str | Path, **where: Any) -> Any:
    """The booster of a checkpoint, by way of `kept`; `where` as for `results.load`.

    Raises:
        ValueError: The checkpoint has no booster, or no round of boosting is in it.
    """
    found = results.load(uri, kept, name="booster", **where)
    if kept.booster is None:
        raise ValueError(f"no round of boosting is in {found.uri}; name a later checkpoint")
    return kept.booster
