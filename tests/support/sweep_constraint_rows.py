"""The rows of the table for `spec.sweep`."""

from typing import Any

from support.constraints import Row
from support.row_makers import in_range, max_length, one_of

_STORAGE = {"uri": "s3://runs/team-a"}


def _swept(**parameter: Any) -> dict[str, Any]:
    """A sweep of one parameter."""
    space = [{"name": "lr", **(parameter or {"values": [0.1]})}]
    return {"samples": 2, "metric": "loss", "mode": "min", "space": space}


def _sweep(path: str, keyword: str, good: dict[str, Any], bad: dict[str, Any], says: str) -> Row:
    """A row about a field of a sweep, which is valid but for that."""
    merged = ({**_swept(), **each} for each in (good, bad))
    good, bad = ({k: v for k, v in each.items() if v is not None} for each in merged)
    return Row(f"spec.sweep{path}", keyword, good, bad, says, "spec.sweep")


def _parameter(
    path: str, keyword: str, good: dict[str, Any], bad: dict[str, Any], says: str
) -> Row:
    """A row about a parameter of a sweep."""
    each = _swept(**good), _swept(**bad)
    return Row(f"spec.sweep.space[]{path}", keyword, *each, says, "spec.sweep")


def _without(field: str) -> dict[str, Any]:
    return {name: value for name, value in _swept().items() if name != field}


def _many(number: int) -> list[dict[str, Any]]:
    return [{"name": f"p{n}", "values": [1]} for n in range(number)]


_ASHA = {"scheduler": "ASHA"}
SWEPT_RUN = {"training": {"function": "a:b"}, "storage": _STORAGE, "sweep": _swept()}
SWEEP_ROWS: list[Row] = [
    *[
        _sweep(f".{row.path}", row.keyword, {**and_, row.path: row.good}, bad, row.says)
        for and_, rows in (
            ({}, in_range("samples", 1, 200)),
            ({}, in_range("concurrency", 1, 100)),
            ({}, one_of("mode", "least", "min", "max")),
            ({}, one_of("scheduler", "asha", "ASHA", "PBT", "none")[::2]),
            ({}, [max_length("metric", 200)]),
            ({}, [Row("metric", "minLength", "a", "", "should be at least 1 chars long")]),
            (_ASHA, in_range("graceSteps", 1, 1_000_000_000)),
            (_ASHA, in_range("reductionFactor", 2, 16)),
            ({"scheduler": "PBT"}, in_range("perturbationInterval", 1, 1_000_000_000)),
            ({}, [Row("space", "maxItems", _many(20), _many(21), "must have at most 20 items")]),
            ({}, [Row("space", "minItems", _many(1), [], "should have at least 1 items")]),
            ({}, [Row("space", "unique", _many(2), _many(1) * 2, "Duplicate value")]),
        )
        for row in rows
        for bad in [{**and_, row.path: row.bad}]
    ],
    *one_of("spec.sweep.search", "tree", "random")[:1],
    *[
        Row(f"spec.sweep.{field}", "required", _swept(), _without(field), "Required value", at)
        for field in ("metric", "mode", "space")
        for at in ["spec.sweep"]
    ],
    *[
        _sweep(
            ".samples",
            "rule",
            good,
            bad,
            "set samples, the number of trials, and leave it out with search grid",
        )
        for good, bad in (
            ({"samples": 1}, {"samples": None}),
            ({"search": "Optuna"}, {"search": "Optuna", "samples": None}),
            ({"search": "grid", "samples": None}, {"search": "grid"}),
        )
    ],
    _sweep(
        ".space",
        "rule",
        {"search": "grid", "samples": None},
        {"search": "grid", "samples": None, "space": [{"name": "lr", "min": 0.1, "max": 1}]},
        "every item must have values with search grid; write values in place of min and max",
    ),
    *[
        _sweep(
            ".scheduler",
            "rule",
            {**_ASHA, setting: 4},
            {setting: 4},
            "graceSteps and reductionFactor are settings of ASHA; leave them out",
        )
        for setting in ("graceSteps", "reductionFactor")
    ],
    *[
        _sweep(
            ".perturbationInterval",
            "rule",
            {"scheduler": "PBT", "perturbationInterval": 10},
            bad,
            "set perturbationInterval, a number of steps, with scheduler PBT, and leave it out",
        )
        for bad in ({"scheduler": "PBT"}, {"perturbationInterval": 10})
    ],
    _sweep(
        ".search",
        "rule",
        {"search": "Optuna"},
        {"search": "Optuna", "scheduler": "PBT", "perturbationInterval": 10},
        "must be random or grid with scheduler PBT, which changes the values by itself",
    ),
    *[
        _parameter("", "rule", good, bad, "set both min and max, or values in their place")
        for good, bad in (
            ({"values": ["a", 1, 0.5, True]}, {"max": 1}),
            ({"min": -0.5, "max": 1}, {"min": 0}),
        )
    ],
    _parameter(".min", "rule", {"min": 1, "max": 2}, {"min": 2, "max": 2}, "must be less than max"),
    _parameter(
        ".min",
        "rule",
        {"min": 0.1, "max": 2, "scale": "log"},
        {"min": 0, "max": 2, "scale": "log"},
        "must be greater than 0 where scale is log",
    ),
    _parameter(
        ".scale",
        "enum",
        {"min": 1, "max": 2, "scale": "log"},
        {"min": 1, "max": 2, "scale": "exponential"},
        'supported values: "linear", "log"',
    ),
    *[
        _parameter(
            f".{field}",
            "rule",
            {"min": 1, "max": 2, field: other},
            {"values": [1, 2], field: other},
            f"leave out {field} with values, which are tried as they are",
        )
        for field, other in (("scale", "log"), ("type", "integer"))
    ],
    _parameter(
        ".type",
        "enum",
        {"min": 1, "max": 2, "type": "integer"},
        {"min": 1, "max": 2, "type": "int"},
        'supported values: "float", "integer"',
    ),
    _parameter(
        ".values",
        "maxItems",
        {"values": list(range(100))},
        {"values": list(range(101))},
        "must have at most 100 items",
    ),
    _parameter(
        ".values", "minItems", {"values": [1]}, {"values": []}, "should have at least 1 items"
    ),
    _parameter(".values[]", "maxItems", {}, {"values": [[1]]}, "must have at most 0 items"),
    _parameter(
        ".values[]", "maxProperties", {}, {"values": [{"a": 1}]}, "must have at most 0 items"
    ),
    _parameter(
        "",
        "rule",
        {"values": [0.1, "a", True]},
        {"values": [0.1, None]},
        "no item of values may be null",
    ),
    _sweep(".space[].name", "required", {}, {"space": [{"values": [1]}]}, "Required value"),
    _sweep(
        ".space[].name",
        "minLength",
        {},
        {"space": [{"name": "", "values": [1]}]},
        "should be at least 1 chars long",
    ),
    _sweep(
        ".space[].name",
        "maxLength",
        {"space": [{"name": "a" * 100, "values": [1]}]},
        {"space": [{"name": "a" * 101, "values": [1]}]},
        "may not be more than 100 bytes",
    ),
    *[
        Row("spec.sweep" + at, "rule", {**SWEPT_RUN, **good}, {**SWEPT_RUN, **bad}, says, "spec")
        for at, says, good, bad in (
            (
                "",
                "needs training.function, which each trial calls with its own config",
                {},
                {"training": {"script": {"path": "/train.py"}}},
            ),
            (
                "",
                "cannot be set together with storage.restoreFrom: trials begin at step 0",
                {},
                {"storage": {**_STORAGE, "restoreFrom": {"run": "other"}}},
            ),
            (
                "",
                "cannot be set together with tracking.wandb and tracking.mlflow",
                {"tracking": {"tensorboard": {}}},
                {"tracking": {"wandb": {}}},
            ),
            (
                ".concurrency",
                "must be at most 1000 workers in all, workers.count for each trial",
                {"workers": {"count": 500}, "sweep": {**_swept(), "concurrency": 2}},
                {"workers": {"count": 501}, "sweep": {**_swept(), "samples": 1, "concurrency": 2}},
            ),
        )
    ],
]
