"""The runs' bearer tokens: derived from keys of the operator's, so that it need not read them.

A token is HMAC-SHA256(operator key, UID of the run). The operator creates the Secret that passes it
to the run's pods, and derives it again after a restart without the right to read any user's Secret.

Keys can be rotated and lost. New tokens are of the newest key; those of the others are tried as
well. The Secret's name contains its key's identifier, so that no attempt begins with one of a lost
key; a head that runs already gets a new one, see `rendering.renewed_token_secret`.
"""

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ..cluster.live_cluster import KubernetesCluster
from ..rendering.names import TOKEN_KEY

log = logging.getLogger(__name__)

KEY_SECRET = "trainingrun-operator-key"  # noqa: S105 - the Secret's name
KEY_FIELD = "key"
"""The newest key. To rotate it, keep it under any other name, and take this one out."""
KEY_BYTES = 32
MOST_KEYS = 5
"""Keys that are tried; the newest ones."""


class Tokens:
    """Makes tokens. Holds the keys; never show one, nor a token, in a log."""

    def __init__(self, keys: Sequence[bytes]):
        """With the operator's keys, the newest first."""
        self._keys = tuple(keys)

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys, the newest first: eight digits that reveal nothing of them."""
        return tuple(hashlib.sha256(key).hexdigest()[:8] for key in self._keys)

    def of(self, run_uid: str, key: str = "") -> str:
        """The run's token of the key of that name, else of the newest; 64 hexadecimal digits."""
        number = self.keys.index(key) if key in self.keys else 0
        return self.all_of(run_uid)[number]

    def all_of(self, run_uid: str) -> list[str]:
        """The run's tokens of all keys, that of the newest key first."""
        return [hmac.new(key, run_uid.encode(), hashlib.sha256).hexdigest() for key in self._keys]


class Keyring:
    """The operator's keys: in a Secret of its namespace, and in the memory of this process."""

    def __init__(self, store: KubernetesCluster, namespace: str):
        """Has no key before `load`."""
        self._store, self._namespace = store, namespace
        self._known: list[bytes] = []
        self.tokens = Tokens(())

    async def load(self) -> None:
        """Reads the keys; makes one at the first start, and repairs a Secret that has none.

        A Secret that is gone is made again with the key that this process remembers; one without a
        usable key gets one. Keys that this process has read are tried until it ends.

        Raises:
            ClusterError: the API server cannot be reached, or refuses; nothing has changed.
        """
        found = await self._store.secret(self._namespace, KEY_SECRET)
        if found is None:
            # Another operator may have made one in between: then that one counts.
            await self._store.create(self._manifest({}))
            found = await self._store.secret(self._namespace, KEY_SECRET) or {}
        data = dict(found.get("data") or {})
        if _key(data.get(KEY_FIELD)) is None:
            manifest = self._manifest(found)
            if KEY_FIELD in data:
                log.warning(
                    "Secret %s/%s holds no %r of %d bytes or more; it gets another one",
                    self._namespace,
                    KEY_SECRET,
                    KEY_FIELD,
                    KEY_BYTES,
                )
            await self._store.replace(manifest)
            data = manifest["data"]
        older = [data[name] for name in sorted(data, reverse=True) if name != KEY_FIELD]
        usable = [key for text in (data[KEY_FIELD], *older) if (key := _key(text)) is not None]
        self._known = list(dict.fromkeys([*usable, *self._known]))[:MOST_KEYS]
        self.tokens = Tokens(self._known)

    def _manifest(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The Secret with a usable newest key: the one that is remembered, where it was lost or
        broken. One that was taken out was rotated, and gets a new successor.
        """
        data = dict(found.get("data") or {})
        rotated = bool(found) and KEY_FIELD not in data
        remembered = self._known[:1] if not rotated else []
        (key,) = remembered or [secrets.token_bytes(KEY_BYTES)]
        metadata = dict(found.get("metadata") or {})
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": self._namespace}
            | {name: metadata[name] for name in _KEPT if name in metadata},
            "type": "Opaque",
            "data": data | {KEY_FIELD: base64.b64encode(key).decode()},
        }


_KEPT = ("uid", "resourceVersion", "labels", "annotations")


def _key(text: object) -> bytes | None:
    """A key as the Secret holds it; None: it is none."""
    try:
        key = base64.b64decode(str(text or ""), validate=True)
    except (binascii.Error, ValueError):
        return None
    return key if len(key) >= KEY_BYTES else None


def with_token(secret: Mapping[str, Any], token: str) -> dict[str, Any]:
    """The run's Secret with its token."""
    return {**secret, "stringData": {TOKEN_KEY: token}}
