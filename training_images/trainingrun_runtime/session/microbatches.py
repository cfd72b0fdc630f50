"""The microbatches of one step of the optimizer, as a session hands them out."""

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from ..data.position import Dealing, Microbatch

log = logging.getLogger(__name__)


def of_step(
    drawn: Iterator[Microbatch],
    models: Collection[DistributedDataParallel],
    begin: Callable[[int], None],
) -> Iterator[tuple[Any, float]]:
    """The data and the weight of each.

    Args:
        drawn: from the step's first one on.
        models: they exchange their gradients with the last one alone.
        begin: called before each with its place in the step, see `Dealing.place`.
    """
    for microbatch in drawn:
        begin(microbatch.place)
        with ExitStack() as without_exchange:
            if not microbatch.last:
                for model in models:
                    # In its first pass a static graph decides what each later one exchanges.
                    if not model.static_graph:
                        without_exchange.enter_context(model.no_sync())
            yield microbatch.data, microbatch.weight
        if microbatch.last:
            return


def log_uneven(dealing: Dealing) -> None:
    """Say so where fewer ranks take other microbatches than all workers would."""
    if dealing.whole % dealing.ranks:
        parts = dealing.parts(dealing.full)
        share = dealing.share(dealing.full, 0)
        log.warning(
            "each step has %d samples as with %d ranks; %d ranks take them in %d microbatches of "
            "at most %d each, which are other ones than with all ranks, since %d is no multiple "
            "of %d",
            *(dealing.full, dealing.whole, dealing.ranks, parts, share.stop - share.start),
            *(dealing.whole, dealing.ranks),
        )
