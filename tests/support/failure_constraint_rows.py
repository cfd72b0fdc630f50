"""The rows for spec.failures.rules and the fields that fill budgets again."""

from typing import Any

from support.constraints import Row
from support.row_makers import by_rule, in_range, max_length, one_of, required

RULE = "spec.failures.rules[]"
WHEN = f"{RULE}.when"
_HANG = {"classes": ["Hang"]}


def _rule(**fields: Any) -> dict[str, Any]:
    return {"when": _HANG, "then": "Restart", **fields}


def _item(field: str, keyword: str, good: Any, bad: Any, says: str) -> Row:
    of_good, of_bad = ({field: [value]} for value in (good, bad))
    return Row(f"{WHEN}.{field}[]", keyword, of_good, of_bad, says, WHEN)


def _many(field: str, value: Any, most: int) -> Row:
    says = f"must have at most {most} items"
    return Row(f"{WHEN}.{field}", "maxItems", [value] * most, [value] * (most + 1), says)


FAILURE_ROWS: list[Row] = [
    Row(
        "spec.failures.rules",
        "maxItems",
        [_rule()] * 16,
        [_rule()] * 17,
        "must have at most 16 items",
    ),
    required(f"{RULE}.when", _HANG),
    required(f"{RULE}.then", "Restart"),
    *one_of(
        f"{RULE}.then",
        "Repeat",
        "Restart",
        "RestartOnOtherNode",
        "RestartOnDemand",
        "Fail",
        "Ignore",
    ),
    *in_range(f"{RULE}.maxRestarts", 0, 10000),
    *by_rule(
        f"{RULE}.maxRestarts",
        "must be left out with then: Fail or Ignore, which use no budget",
        [[_rule(maxRestarts=1)], [_rule(then="Ignore")]],
        [[_rule(maxRestarts=1, then="Ignore")], [_rule(maxRestarts=1, then="Fail")]],
        "spec.failures.rules",
    ),
    *by_rule(
        f"{RULE}.backoff",
        "must be left out with then: Fail, after which nothing begins",
        [[_rule(backoff={}, then="Ignore")]],
        [[_rule(backoff={}, then="Fail")]],
        "spec.failures.rules",
    ),
    *in_range(f"{RULE}.backoff.initialSeconds", 0, 86400),
    *in_range(f"{RULE}.backoff.factor", 1, 10),
    *in_range(f"{RULE}.backoff.maxSeconds", 0, 86400),
    *by_rule(
        f"{RULE}.backoff.maxSeconds",
        "must not be less than initialSeconds; raise it or lower initialSeconds",
        [{"maxSeconds": 10}],
        [{"maxSeconds": 9}],
        f"{RULE}.backoff",
    ),
    *by_rule(
        WHEN,
        "must have at least one of classes, reasons, exitCodes and logPattern",
        [{"exitCodes": [1]}, {"reasons": ["OOMKilled"]}, {"logPattern": "nan"}, _HANG],
        [{}, {"classes": []}, {"reasons": [], "exitCodes": []}],
    ),
    *by_rule(
        WHEN,
        "logPattern must be a regular expression in RE2's syntax, such as 'CUDA error: .* ECC'",
        [
            {"logPattern": pattern}
            for pattern in (
                *("CUDA error: .* ECC", "(?i)nan|inf", r"C\+\+", r"^\[rank \d+\]"),
                *(r"(?<name>x)", r"\pN+ bytes", r"done\z", "(?U)x", r"\Qa.b\E", "a(?i)b", "^*"),
                *("[[:digit:]]+ bytes", "(?P<n>x)", r"\x{41}", r"[\w-a]", "(?-i)a"),
            )
        ],
        [{"logPattern": pattern} for pattern in ("(", "a(?=b)", "(?<!a)b", r"(a)\1", "a**")],
    ),
    Row(f"{WHEN}.logPattern", "minLength", "a", "", "should be at least 1 chars long"),
    max_length(f"{WHEN}.logPattern", 200),
    _many("classes", "Hang", 10),
    *(
        _item("classes", "enum", good, "Unlucky", "supported values:")
        for good in ("Preempted", "ApplicationError", "OutOfMemory", "StorageError")
    ),
    _many("reasons", "Error", 16),
    _item("reasons", "minLength", "a", "", "should be at least 1 chars long"),
    _item("reasons", "maxLength", "a" * 100, "a" * 101, "may not be more than 100 bytes"),
    _many("exitCodes", 1, 16),
    _item("exitCodes", "minimum", 1, 0, "should be greater than or equal to 1"),
    _item("exitCodes", "maximum", 255, 256, "should be less than or equal to 255"),
    *in_range("spec.failures.refillAfterSteps", 1, 1_000_000_000),
    *in_range("spec.failures.refillAfterSeconds", 1, 31536000),
]
