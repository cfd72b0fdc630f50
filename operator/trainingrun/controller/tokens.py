"""The runs' bearer tokens: derived from one key of the operator's, so that it need not read them.

A token is HMAC-SHA256(operator key, UID of the run). The operator creates the Secret that hands it
to the run's pods, and knows it again after a restart without the right to read any user's Secret.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

KEY_SECRET = "trainingrun-operator-key"  # noqa: S105 - the Secret's name
KEY_FIELD = "key"


class SecretStore(Protocol):
    """What is needed of a cluster."""

    async def secret(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """A Secret, or None."""
        ...

    async def create(self, manifest: Mapping[str, Any]) -> bool:
        """False: there is one of that name."""
        ...


class Tokens:
    """Makes tokens. Holds the key; never show it, nor a token, in a log."""

    def __init__(self, key: bytes):
        """With the operator's key."""
        self._key = key

    def of(self, run_uid: str) -> str:
        """The run's token, 64 hexadecimal digits."""
        return hmac.new(self._key, run_uid.encode(), hashlib.sha256).hexdigest()


async def load_tokens(store: SecretStore, namespace: str) -> Tokens:
    """Reads the operator's key from its namespace; makes it at the first start.

    Raises:
        ClusterError: the API server cannot be asked, or refuses.
        ValueError: the Secret is there, but holds no key.
    """
    found = await store.secret(namespace, KEY_SECRET)
    if found is None:
        made = base64.b64encode(secrets.token_bytes(32)).decode()
        manifest = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": KEY_SECRET, "namespace": namespace},
            "type": "Opaque",
            "data": {KEY_FIELD: made},
        }
        # Another operator may have made one in between: then that one counts.
        await store.create(manifest)
        found = await store.secret(namespace, KEY_SECRET)
    data = (found or {}).get("data") or {}
    key = base64.b64decode(data.get(KEY_FIELD, ""))
    if len(key) < 32:
        raise ValueError(
            f"Secret {namespace}/{KEY_SECRET} holds no {KEY_FIELD!r} of 32 bytes or more; delete "
            "it and restart the operator. Runs that are under way then need a new attempt"
        )
    return Tokens(key)


def with_token(secret: Mapping[str, Any], field: str, token: str) -> dict[str, Any]:
    """The run's Secret with its token."""
    return {**secret, "stringData": {field: token}}
