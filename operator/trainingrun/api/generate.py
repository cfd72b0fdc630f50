"""Writes what is made from the models: `python -m trainingrun.api.generate [--check]`.

The files are manifests/crd/trainingruns.yaml, the chart's copy of it, docs/api.md and
docs/conditions.md, below the current folder. With --check nothing is written, and a file that
differs ends it with code 1.
"""

import sys
from collections.abc import Mapping
from pathlib import Path

import yaml

from .crd import crd
from .reasons import conditions_page
from .reference import reference

_NOTE = "# Generated from operator/trainingrun/api by `make generate`; do not edit.\n"


def generated() -> Mapping[Path, str]:
    """Every generated file, by its path in the repository."""
    text = yaml.safe_dump(crd(), sort_keys=False, width=100, allow_unicode=True)
    return {
        Path("manifests/crd/trainingruns.yaml"): _NOTE + text,
        Path("charts/trainingrun-operator/templates/crd.yaml"): _NOTE + _template(text),
        Path("docs/api.md"): reference(),
        Path("docs/conditions.md"): conditions_page(),
    }


def _template(text: str) -> str:
    """The CRD as a template, with values crds.enabled and crds.keep."""
    keep = (
        "{{- if .Values.crds.keep }}\n"
        "  annotations:\n"
        "    helm.sh/resource-policy: keep\n"
        "{{- end }}\n"
    )
    if "{{" in text:
        raise ValueError("Helm would read {{ in a description as a template; write it otherwise")
    head, name, rest = text.partition(f"  name: {crd()['metadata']['name']}\n")
    # {{- eats the line's end before it, so each stands at the end of what it follows.
    return "{{- if .Values.crds.enabled }}\n" + head + name + keep + rest + "{{- end }}\n"


def main(arguments: list[str]) -> int:
    """Writes, or checks, the files; the exit code."""
    stale = [
        path
        for path, text in generated().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is not what the models say; run: make generate", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(generated()[path], encoding="utf-8")
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
