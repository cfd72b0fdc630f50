"""Writes operator/trainingrun/api/pod_schema.json: what Kubernetes' API knows of a pod template.

    pod_schema.py GO_MODULE_FOLDER

The folder is that of the Go module k8s.io/kubernetes, as in

    go mod download -json k8s.io/kubernetes@v1.37.2

It holds the OpenAPI document that kube-apiserver serves, and the Go code from which it serves the
values of enumerations, which the document in the module leaves out. `tests/apiserver` compares the
result with what a running API server serves.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "operator" / "trainingrun" / "api" / "pod_schema.json"
ROOTS = ("PodTemplateSpec",)

Schemas = dict[str, dict[str, Any]]


def trimmed(schemas: Schemas, enums: dict[str, dict[str, list[str]]]) -> dict[str, Any]:
    """The types below the roots: a word for each field, without any text.

    Args:
        schemas: `components.schemas` of the OpenAPI document.
        enums: By type and field, where the document has no `enum`.
    """
    known = {name.rsplit(".", 1)[-1]: name for name in schemas}
    types: dict[str, dict[str, Any]] = {}
    required: dict[str, list[str]] = {}
    left = list(ROOTS)
    while left:
        kind = left.pop()
        if kind in types:
            continue
        schema = schemas[known[kind]]
        types[kind] = {}
        for field, node in sorted(schema.get("properties", {}).items()):
            word = _word(node)
            enum = node.get("enum") or enums.get(kind, {}).get(field)
            types[kind][field] = sorted(enum) if enum and word == "string" else word
            inner = word.removeprefix("[]").removeprefix("{}")
            if inner[0].isupper():
                left.append(inner)
        if schema.get("required"):
            required[kind] = sorted(schema["required"])
    return {"types": dict(sorted(types.items())), "required": dict(sorted(required.items()))}


def _word(node: dict[str, Any]) -> str:
    """`string`, `int32`, `quantity` …, the name of a type, `[]` a list of and `{}` a map of it."""
    (node,) = node.get("allOf") or [node]
    if "$ref" in node:
        kind = str(node["$ref"]).rsplit(".", 1)[-1]
        plain = {
            "Quantity": "quantity",
            "IntOrString": "int-or-string",
            "Time": "date-time",
            "FieldsV1": "object",
        }
        return plain.get(kind, kind)
    match node["type"]:
        case "array":
            return "[]" + _word(node["items"])
        case "object" if "additionalProperties" in node:
            return "{}" + _word(node["additionalProperties"])
        case "integer":
            return str(node["format"])
        case other:
            return str(other)


def enumerations(code: str) -> dict[str, dict[str, list[str]]]:
    """The values of enumerations, by type and field, from kube-apiserver's generated Go code."""
    found: dict[str, dict[str, list[str]]] = {}
    for kind, body in re.findall(
        r"^func schema_k8sio_api_core_v1_(\w+)\(ref.*?$(.*?)^}$", code, re.MULTILINE | re.DOTALL
    ):
        for field, values in re.findall(
            r'^\t{5}"(\w+)": \{\n\t{6}SchemaProps: spec\.SchemaProps\{\n'
            r"(?:\t{7}(?!Enum:).*\n)*\t{7}Enum: +\[\]interface\{\}\{(.*?)\},$",
            body,
            re.MULTILINE,
        ):
            found.setdefault(kind, {})[field] = json.loads(f"[{values}]")
    return found


def text_of(schema: dict[str, Any]) -> str:
    """As it is stored: a line for each type."""
    parts = []
    for part, entries in schema.items():
        lines = (f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in entries.items())
        parts.append(f"  {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n  }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(folder: Path) -> None:
    """Write the file."""
    document = json.loads((folder / "api/openapi-spec/v3/api__v1_openapi.json").read_text("utf-8"))
    code = (folder / "pkg/generated/openapi/zz_generated.openapi.go").read_text("utf-8")
    schema = trimmed(document["components"]["schemas"], enumerations(code))
    TARGET.write_text(text_of(schema), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
