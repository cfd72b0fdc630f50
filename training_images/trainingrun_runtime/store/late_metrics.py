"""Metrics that were reported after their checkpoint: `metrics/<manifest>/<fencing token>.json`.

A manifest is written once, when its files are uploaded, and an evaluation may end later. What that
reports is an object of its own, so that nothing is uploaded again. Its name has the fencing token
of the driver that wrote it, which may be a later one than the manifest's: an evaluation is done
again after a restart. Of several, the one with the highest token counts.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from .bucket import Bucket
from .metric_values import printable_metrics

FOLDER = "metrics"
"""Where they are, below the run's folder."""
LARGEST = 2**20
"""Bytes of such an object; a larger one is not read."""

log = logging.getLogger(__name__)


def add(bucket: Bucket, manifest: str, fencing_token: int, metrics: Mapping[str, Any]) -> None:
    """Add metrics to a committed checkpoint, beside those that this driver has added before.

    Args:
        bucket: The run's folder.
        manifest: Name of its manifest, such as `000003-000007`.
        fencing_token: The caller's.
        metrics: As JSON can carry them.

    Raises:
        StorageError: The store did not answer.
    """
    key = f"{FOLDER}/{manifest}/{fencing_token:06d}.json"
    known = _metrics(bucket.get(key), key)
    bucket.put(key, json.dumps({**known, **metrics}, allow_nan=False).encode())


def read_all(bucket: Bucket) -> dict[str, dict[str, Any]]:
    """Metrics by the name of their manifest. What cannot be read is left out."""
    found: dict[str, dict[str, Any]] = {}
    # Zero-padded tokens sort as they count.
    for entry in bucket.list(FOLDER):
        if entry.size > LARGEST:
            log.warning("%s has %d bytes; it is not read", bucket.uri(entry.key), entry.size)
            continue
        metrics = _metrics(bucket.get(entry.key), entry.key)
        found.setdefault(_manifest(entry.key), {}).update(metrics)
    return found


def sweep(bucket: Bucket, current_token: int, kept: Iterable[str]) -> None:
    """Delete the metrics of checkpoints that are gone.

    Args:
        bucket: The run's folder.
        current_token: The caller's fencing token. Checkpoints of later ones are not known to it.
        kept: Names of the manifests that there still are.
    """
    known = set(kept)
    bucket.delete(
        entry.key
        for entry in bucket.list(FOLDER)
        if (name := _manifest(entry.key)) not in known and _token(name) <= current_token
    )


def delete(bucket: Bucket, manifests: Iterable[str]) -> None:
    """Delete the metrics of these checkpoints, named by their manifests."""
    gone = set(manifests)
    bucket.delete(entry.key for entry in bucket.list(FOLDER) if _manifest(entry.key) in gone)


def _manifest(key: str) -> str:
    return key.removeprefix(f"{FOLDER}/").partition("/")[0]


def _token(manifest: str) -> int:
    digits = manifest.partition("-")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def _metrics(content: bytes | None, key: str) -> dict[str, Any]:
    try:
        document: Any = json.loads(content or b"{}")
    except ValueError as error:
        log.warning("%s cannot be read: %s", key, error)
        return {}
    return printable_metrics(document) if isinstance(document, dict) else {}
