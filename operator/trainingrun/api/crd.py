"""The CustomResourceDefinitions, made from the models: one source for API server and Python.

Pydantic's JSON schema is turned into what Kubernetes calls structural: no references, no unions,
one type everywhere. Every field keeps its docstring as description, and every `Rule` becomes an
`x-kubernetes-validations` entry.
"""

import re
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from trainingrun_protocol.wire import Wire

from .base import Model, Rule
from .defaults import (
    CLUSTER_DEFAULTS_KIND,
    CLUSTER_DEFAULTS_PLURAL,
    DEFAULTS_KIND,
    DEFAULTS_NAME,
    DEFAULTS_PLURAL,
    FIELDS,
    FieldTree,
    Maximum,
)
from .status import RunStatus
from .v1alpha1 import GROUP, KIND, PLURAL, VERSION, RunSpec, TrainingRun

Schema = dict[str, Any]

_INT32_MAX = 2**31 - 1


def crd() -> Schema:
    """The CRD of TrainingRun, as the API server takes it."""
    fields = {
        "spec": run_spec(),
        # No defaults within: a status holds what the operator wrote and nothing else. Before
        # that kstatus would take the run for done; of an older generation it is in progress.
        "status": {
            **_without_defaults(schema(RunStatus)),
            "default": {"observedGeneration": -1},
        },
    }
    version = {
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": kind, "jsonPath": path, "description": text}
            for name, kind, path, text in PRINTER_COLUMNS
        ],
        # Kubernetes 1.30 leaves them out without a word, 1.31 serves them.
        "selectableFields": [
            {"jsonPath": ".spec.suspend"},
            {"jsonPath": ".status.phase"},
        ],
    }
    return _definition(
        "Namespaced",
        {**_names(KIND, PLURAL), "shortNames": ["tr"], "categories": ["all"]},
        version,
        _object(_one_line(TrainingRun.__doc__), fields, _validations(TrainingRun.rules)),
    )


def defaults_crds() -> tuple[Schema, Schema]:
    """The CRDs of TrainingDefaults and ClusterTrainingDefaults."""
    return (
        _defaults_crd(
            "Namespaced",
            DEFAULTS_KIND,
            DEFAULTS_PLURAL,
            "Defaults and limits of the TrainingRuns of its namespace.",
        ),
        _defaults_crd(
            "Cluster",
            CLUSTER_DEFAULTS_KIND,
            CLUSTER_DEFAULTS_PLURAL,
            "Defaults and limits of the TrainingRuns of all namespaces.",
        ),
    )


def _defaults_crd(scope: str, kind: str, plural: str, description: str) -> Schema:
    spec = _partial(run_spec(), FIELDS)
    spec["description"] = "What runs get that do not set it themselves, and the most they may ask."
    # Not a rule of the model, which the status of runs has too: what is stored already counts.
    above_zero = Rule(
        "!has(self.budgetAmount) || self.budgetAmount > 0.0",
        "must be more than 0; leave budgetAmount out for runs without a largest budget",
        field="budget_amount",
    )
    rules = {"x-kubernetes-validations": _validations((above_zero,))}
    spec["properties"]["maximum"] = {**schema(Maximum), **rules}
    rule = {
        "rule": f"self.metadata.name == '{DEFAULTS_NAME}'",
        "message": f"must be {DEFAULTS_NAME}: one object counts, and no other is read",
        "fieldPath": ".metadata.name",
    }
    root = _object(description, {"spec": spec}, [rule])
    return _definition(scope, _names(kind, plural), {}, root)


def _object(description: str, fields: Schema, rules: list[Schema]) -> Schema:
    """The schema of an object with these fields beside those of every object."""
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # Named so that the rule about it can point there; 253 is Kubernetes' own limit, which
            # bounds the rule's cost.
            "metadata": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 253}},
            },
            **fields,
        },
        "x-kubernetes-validations": rules,
    }


def _names(kind: str, plural: str) -> Schema:
    return {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}


def _definition(scope: str, names: Schema, version: Schema, root: Schema) -> Schema:
    """A CRD of one version, of which `version` has what is its own."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": names,
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    **version,
                    "schema": {"openAPIV3Schema": root},
                }
            ],
        },
    }


def _partial(node: Schema, tree: FieldTree | None) -> Schema:
    """Those fields of an object, of which none is required and none has a default, with the rules
    that are about them alone.
    """
    found = {key: value for key, value in node.items() if key not in ("default", "required")}
    if "properties" not in node or "x-kubernetes-preserve-unknown-fields" in node:
        return found
    kept = node["properties"].keys() if tree is None else tree.keys()
    found["properties"] = {
        name: _partial(node["properties"][name], None if tree is None else tree[name])
        for name in kept
    }
    whole = set(kept) if tree is None else {name for name, below in tree.items() if below is None}
    rules = [
        rule
        for rule in _rules(node)
        if "oldSelf" not in rule["rule"]
        and set(re.findall(r"\bself[.](\w+)", rule["rule"])) <= whole
    ]
    found.pop("x-kubernetes-validations", None)
    return {**found, "x-kubernetes-validations": rules} if rules else found


def _rules(node: Schema) -> list[Schema]:
    found: list[Schema] = node.get("x-kubernetes-validations", [])
    return found


def run_spec() -> Schema:
    """The schema of a run's spec, without the requirements of the model that TrainingDefaults may
    meet: the operator checks them, once it has merged both.
    """
    spec = schema(RunSpec)
    storage = dict(spec["properties"]["storage"])
    del storage["required"]
    required = [name for name in spec["required"] if name != "storage"]
    return {**spec, "required": required, "properties": {**spec["properties"], "storage": storage}}


def schema(model: type[Wire]) -> Schema:
    """The structural schema of one model."""
    found = model.model_json_schema(by_alias=True, schema_generator=_WithRulesAndDefaults)
    return _structural(found, found.get("$defs", {}))


class _WithRulesAndDefaults(GenerateJsonSchema):
    """Pydantic's generator, plus what it leaves out: our rules, and defaults made by a factory."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        model = cast("type[Wire]", schema["cls"])
        if issubclass(model, Model) and (rules := _validations(model.rules)):
            found["x-kubernetes-validations"] = rules
        for name, field in model.model_fields.items():
            annotation = field.annotation
            if field.default_factory and isinstance(annotation, type):  # a model, not a list
                # The API server fills nested defaults only below an object that is there.
                found["properties"][field.alias or name]["default"] = {}
        return found


def _structural(node: Schema, definitions: Schema) -> Schema:
    """Inlines references, collapses `X | None`, and drops what structural schemas do not take."""
    if "$ref" in node:
        target = definitions[node["$ref"].rsplit("/", 1)[-1]]
        # The field's own docstring says more than that of its type.
        node = {**target, **{key: value for key, value in node.items() if key != "$ref"}}
        return _structural(node, definitions)
    if "anyOf" in node and "x-kubernetes-int-or-string" not in node:
        (only,) = (option for option in node["anyOf"] if option != {"type": "null"})
        rest = {key: value for key, value in node.items() if key != "anyOf"}
        return _structural({**only, **rest}, definitions)
    return _cleaned(node, definitions)


def _cleaned(node: Schema, definitions: Schema) -> Schema:
    clean: Schema = {}
    for key, value in node.items():
        if key in ("title", "$defs") or (key == "default" and value is None):
            continue
        if key == "additionalProperties":
            if value is True:
                clean["x-kubernetes-preserve-unknown-fields"] = True
        elif key == "properties":
            clean[key] = {name: _structural(child, definitions) for name, child in value.items()}
        elif key == "items":
            clean[key] = _structural(value, definitions)
        elif key == "const":
            clean["enum"] = [value]
        elif key == "description":
            clean[key] = _one_line(value)
        else:
            clean[key] = value
    if clean.get("type") == "integer":
        clean["format"] = "int32" if clean.get("maximum", _INT32_MAX + 1) <= _INT32_MAX else "int64"
    return clean


def _validations(rules: tuple[Rule, ...]) -> list[Schema]:
    return [
        {
            "rule": rule.cel,
            "message": rule.message,
            **({"fieldPath": f".{rule.path}"} if rule.path else {}),
        }
        for rule in rules
        if rule.cel
    ]


def _without_defaults(node: Schema) -> Schema:
    found = {key: value for key, value in node.items() if key != "default"}
    if "properties" in found:
        found["properties"] = {k: _without_defaults(v) for k, v in found["properties"].items()}
    if "items" in found:
        found["items"] = _without_defaults(found["items"])
    return found


def _one_line(text: str | None) -> str:
    return " ".join((text or "").split())


PRINTER_COLUMNS = (
    ("Phase", "string", ".status.phase", "Where the run stands."),
    ("Progress%", "integer", ".status.progress.percent", "Steps done, in percent."),
    ("Step", "integer", ".status.progress.step", "Steps done."),
    ("Attempt", "integer", ".status.attempt", "Number of the current attempt."),
    ("Preemptions", "integer", ".status.disruptions.preemptions", "Workers lost after a notice."),
    ("Goodput%", "integer", ".status.goodput.percent", "Share of time in steps that counted."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
)
"""Name, type, JSONPath and description of each."""
