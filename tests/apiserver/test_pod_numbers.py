"""What we hold for the types of Kubernetes' API is what a real API server reads and serves.

No number that Go could not read is sent as a RayJob, which KubeRay would read: only as a Pod that
is not kept.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.apiserver import ApiError, ApiServer
from support.pod_fields import BAD, TEMPLATE_PATHS, with_value
from trainingrun.api import pod_schema

GENERATOR = Path(__file__).parents[2] / ".ci" / "pod_schema.py"
IN_GRAMMAR = ("9223372036854775808", "8Ei", 2**63, "1e100", "1" * 65)
"""Quantities that Go reads, and rounds or takes long for; the operator refuses them."""
AT_MOST: dict[str, list[Any]] = {
    "int32": [2**31 - 1, -(2**31)],
    "int64": [2**63 - 1, -(2**63)],
    "int-or-string": [2**31 - 1, "name"],
    "quantity": ["9223372036854775807", "1e99", "+.5", "0.1n", 4],
    "date-time": ["2026-01-31T12:00:00Z"],
}
GONE = {"ClaimSource", "PodResourceClaim.source"}
"""Of Kubernetes 1.30 alone, for a gate that it has off: 1.31 put what it held one level up."""


def refusal(apiserver: ApiServer, manifest: dict[str, Any]) -> ApiError | None:
    try:
        apiserver.create(manifest, dry_run=True)
    except ApiError as error:
        return error
    return None


def tries(values: dict[str, list[Any]]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Each field with two values of its type, and one field of each type with all of them."""
    seen: set[str] = set()
    for path, kind in TEMPLATE_PATHS:
        if "metadata" in path:
            continue
        for value in values[kind] if kind not in seen else values[kind][:2]:
            yield path, kind, value
        seen.add(kind)


def a_pod(template: Any) -> dict[str, Any]:
    metadata = {**template.get("metadata", {}), "name": "pod", "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": template.get("spec", {}),
    }


def test_the_types_are_those_by_which_go_reads_a_pod(apiserver: ApiServer):
    """Each number just beyond the type that we hold it for is unreadable, and each at its end is
    read.
    """
    different = []
    for bad, (path, kind, value) in [
        *((True, one) for one in tries(BAD)),
        *((False, one) for one in tries(AT_MOST)),
    ]:
        if kind == "quantity" and bad and (value in IN_GRAMMAR or value == 0.5):
            continue
        error = refusal(apiserver, a_pod(with_value(path, value)))
        if error is not None and "unknown field" in str(error):
            continue  # of a newer Kubernetes than this API server
        unreadable = error is not None and error.code == 400
        if unreadable != bad:
            different.append(f"{path}: {value!r}: {error}")
    assert different == []


def test_the_schema_has_what_the_api_server_serves(apiserver: ApiServer):
    """Ours may be of a newer Kubernetes, with more fields and more choices."""
    spec = importlib.util.spec_from_file_location("pod_schema_generator", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    document = apiserver.request("GET", "/openapi/v3/api/v1")
    served = generator.trimmed(document["components"]["schemas"], {})
    ours = pod_schema.schema()
    different = [
        f"{kind}.{field}: {ours['types'].get(kind, {}).get(field)}, served {holds}"
        for kind, fields in served["types"].items()
        for field, holds in fields.items()
        if not _same(ours["types"].get(kind, {}).get(field), holds)
        and not GONE & {kind, f"{kind}.{field}"}
    ]
    assert different == []
    assert {
        (kind, field)
        for kind, fields in ours["required"].items()
        for field in fields
        if field in served["types"].get(kind, {}) and field not in served["required"].get(kind, ())
    } == set()


def _same(ours: Any, served: Any) -> bool:
    if isinstance(served, list) and isinstance(ours, list):
        return set(served) - {""} <= set(ours)
    return bool(ours == served)
