"""What waits in several namespaces: each takes its turn, however much waits in another one."""

from collections import deque
from collections.abc import Collection
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """First in, first out within a namespace; those in which something waits take turns."""

    def __init__(self) -> None:
        """Nothing waits."""
        self._waiting: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, namespace: str, item: T) -> None:
        """It waits from now on, behind the others of its namespace."""
        self._waiting.setdefault(namespace, deque()).append(item)

    def pop(self, but: Collection[str] = ()) -> T:
        """Takes out what is next, of other namespaces than those in `but`.

        Raises:
            IndexError: Nothing waits there.
        """
        namespace = next((each for each in self._waiting if each not in but), None)
        if namespace is None:
            raise IndexError("nothing waits")
        items = self._waiting.pop(namespace)
        item = items.popleft()
        if items:
            self._waiting[namespace] = items  # behind the other namespaces
        return item

    def clear(self) -> None:
        """Nothing waits any more."""
        self._waiting.clear()
