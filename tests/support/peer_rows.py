"""Peers of a NetworkPolicy, those that the API server takes and those that it does not."""

from typing import Any

LABELS = {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}


def requiring(**requirement: Any) -> dict[str, Any]:
    return {"podSelector": {"matchExpressions": [requirement]}}


def block(cidr: Any, *excepted: Any) -> dict[str, Any]:
    return {"ipBlock": {"cidr": cidr, "except": list(excepted)}}


RIGHT: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    ({"podSelector": LABELS}, {"podSelector": LABELS}),
    (
        {"podSelector": LABELS, "namespaceSelector": LABELS},
        {"podSelector": LABELS, "namespaceSelector": LABELS},
    ),
    ({"podSelector": {}}, {"podSelector": {}}),
    ({"namespaceSelector": {}}, {"namespaceSelector": {}}),
    ({"podSelector": {"matchLabels": {}, "matchExpressions": []}}, {"podSelector": {}}),
    ({"podSelector": {"matchLabels": {"app": ""}}}, {"podSelector": {"matchLabels": {"app": ""}}}),
    (
        requiring(key="app", operator="In", values=["a", ""]),
        requiring(key="app", operator="In", values=["a", ""]),
    ),
    (requiring(key="app", operator="Exists", values=[]), requiring(key="app", operator="Exists")),
    (block("10.0.0.0/8"), {"ipBlock": {"cidr": "10.0.0.0/8"}}),
    (block("10.0.0.0/8", "10.1.0.0/16"), block("10.0.0.0/8", "10.1.0.0/16")),
    (block("fd00::/8", "fd00:1::/32"), block("fd00::/8", "fd00:1::/32")),
)
"""Peers, and how the API server gives them back."""

WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"app": "a"}, ""),
    ({"podSelector": {"matchLabel": {"app": "a"}}}, "/podSelector"),
    ({"podSelector": "a"}, "/podSelector"),
    ({"podSelector": None}, "/podSelector"),
    ({"podSelector": {"matchLabels": {"app": 1}}}, "/podSelector/matchLabels/app"),
    ({"podSelector": {"matchLabels": {"app": "a b"}}}, "/podSelector/matchLabels/app"),
    ({"podSelector": {"matchLabels": {"-app": "a"}}}, "/podSelector/matchLabels"),
    (requiring(key="app", operator="in", values=["a"]), "/podSelector/matchExpressions/0/operator"),
    (requiring(key="app", operator=""), "/podSelector/matchExpressions/0/operator"),
    (requiring(key="app", operator="In"), "/podSelector/matchExpressions/0"),
    (
        requiring(key="app", operator="Exists", values=["a"]),
        "/podSelector/matchExpressions/0/values",
    ),
    (requiring(key="a/b/c", operator="Exists"), "/podSelector/matchExpressions/0/key"),
    (
        requiring(key="app", operator="In", values=["a", "-"]),
        "/podSelector/matchExpressions/0/values/1",
    ),
    ({"podSelector": LABELS, "ipBlock": {"cidr": "10.0.0.0/8"}}, "/podSelector"),
    ({"ipBlock": {"cidr": "10.0.0.0/8", "expect": []}}, "/ipBlock"),
    ({"ipBlock": {}}, "/ipBlock"),
    (block("10.0.0.1"), "/ipBlock/cidr"),
    (block("10.0.0.0/8", 16), "/ipBlock/except/0"),
)
"""Peers, and where the chart's schema refuses them."""

WRONG_IN_NUMBERS: tuple[dict[str, Any], ...] = (
    block("10.0.0.0/33"),
    block("10.0.0.0/8", "11.0.0.0/16"),
    block("10.0.0.0/8", "10.0.0.0/8"),
    block("10.0.0.0/8", "fd00::/16"),
)
"""Those that no schema refuses."""
