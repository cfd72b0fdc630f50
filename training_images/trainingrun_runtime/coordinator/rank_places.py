"""Where the ranks are, and which of their nodes Ray has lost."""

import threading
from collections.abc import Collection
from typing import NamedTuple


class RankPlace(NamedTuple):
    """Where the latest process of a rank was started; "" where it is not known."""

    ray_node: str
    node: str
    """Of Kubernetes."""
    pod: str


class RankPlaces:
    """The places of one driver's ranks. Called from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[int, RankPlace] = {}
        self._lost: dict[str, str] = {}  # Ray node -> Kubernetes node

    def joined(self, rank: int, place: RankPlace) -> None:
        """A process of this rank was started there."""
        with self._lock:
            self._places[rank] = place
            # A node that is reachable again, or runs a new pod, is not lost.
            self._lost = {dead: name for dead, name in self._lost.items() if name != place.node}

    @property
    def ray_nodes(self) -> set[str]:
        """Those on which ranks are."""
        with self._lock:
            return {place.ray_node for place in self._places.values()}

    def died(self, ray_nodes: Collection[str]) -> None:
        """These nodes of Ray are dead; those on which no rank is do not count."""
        with self._lock:
            for place in self._places.values():
                if place.ray_node in ray_nodes:
                    self._lost.setdefault(place.ray_node, place.node)

    @property
    def lost_nodes(self) -> list[str]:
        """Kubernetes nodes whose Ray is dead."""
        with self._lock:
            return sorted(set(self._lost.values()))

    def of_first(self, ranks: Collection[int]) -> RankPlace | None:
        """Where the first of these ranks is whose place is known."""
        with self._lock:
            return next((self._places[rank] for rank in ranks if rank in self._places), None)

    def nodes(self) -> dict[int, str]:
        """Kubernetes nodes by rank."""
        with self._lock:
            return {rank: place.node for rank, place in self._places.items()}

    def pods(self) -> dict[int, str]:
        """Pods by rank."""
        with self._lock:
            return {rank: place.pod for rank, place in self._places.items()}
