"""TrainingDefaults and ClusterTrainingDefaults, read where a run has not begun.

They are not watched: a run that is created after its namespace's defaults must not begin without
them because their event comes later. After the first attempt the run's status has what it needs.
"""

import asyncio
import logging
import time

from ..api.defaults import CLUSTER_DEFAULTS_KIND, DEFAULTS_KIND, DEFAULTS_NAME
from ..api.v1alpha1 import API_VERSION
from .api_client import ClusterError, Connection, Forbidden, NotFound, NotServed
from .object_store import Object
from .resources import path

log = logging.getLogger(__name__)

REFUSED_S = 60.0
"""For so long a kind that may not be read is not requested again."""
NO_ROLE_AFTER_S = 30.0
"""What was never read counts as what may not be read once it was refused for so long: an API server
that is just starting knows no roles yet."""
FIND_OUT_S = 5.0
"""Between two reads while that is found out before there are runs."""


class Defaults:
    """Reads the objects that count for a namespace."""

    def __init__(self, connection: Connection, *, confined: bool = False):
        """Reads by this connection; `confined`: each namespace has a Role of its own, so that
        what one says of the right to read holds for no other.
        """
        self._connection, self._confined = connection, confined
        self._answered: set[str] = set()
        self._first_refused_at: dict[str, float] = {}
        self._refused_at: dict[str, float] = {}

    async def of(self, namespace: str) -> tuple[Object, ...]:
        """The namespace's object and that of the cluster, as far as there are any.

        A kind that is not installed, or that the operator has never been allowed to read, has none.

        Raises:
            Forbidden, NotServed: it could be read before, or was not refused for long.
            ClusterError: it is not known whether there is one.
        """
        found = await asyncio.gather(
            self._read(DEFAULTS_KIND, namespace), self._read(CLUSTER_DEFAULTS_KIND, None)
        )
        return tuple(each for each in found if each is not None)

    async def find_out(self) -> None:
        """Reads the cluster's object until it is known whether it may be read: no run that is
        created later waits for that.
        """
        while True:
            try:
                await self._read(CLUSTER_DEFAULTS_KIND, None)
            except ClusterError:
                await asyncio.sleep(FIND_OUT_S)
            else:
                return

    async def _read(self, kind: str, namespace: str | None) -> Object | None:
        url = path(API_VERSION, kind, namespace, DEFAULTS_NAME)
        role = url if self._confined else kind
        if time.monotonic() - self._refused_at.get(role, -REFUSED_S) < REFUSED_S:
            return None
        try:
            found = await self._connection.request("GET", url)
        except NotFound:
            found = None
        except NotServed:
            # A server that is just starting may not serve it yet: what was there once is not absent
            # for that.
            if kind in self._answered:
                raise
            return None
        except Forbidden as error:
            now = time.monotonic()
            refused_s = now - self._first_refused_at.setdefault(role, now)
            if role in self._answered or refused_s < NO_ROLE_AFTER_S:
                raise  # a role may be taken away for a moment, or not be known yet
            if role not in self._refused_at:
                log.warning("runs begin without %s: %s", kind, error)
            self._refused_at[role] = now
            return None
        self._answered |= {role, kind}
        return found
