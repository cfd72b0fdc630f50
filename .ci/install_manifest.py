#!/usr/bin/env python3
"""Print manifests/install.yaml: the chart with its default values, for `kubectl apply`.

Usage: install_manifest.py HELM [NAME=VALUE …], the latter values of the chart. The text depends on
the chart alone, not on helm's version: what helm adds (comments, its own labels) is dropped, and
the namespace, which `helm install` would create, is put first.
"""

import subprocess
import sys
from pathlib import Path

import yaml

NAMESPACE = "trainingrun-system"
CHART = Path(__file__).resolve().parent.parent / "charts" / "trainingrun-operator"
HEADER = """\
# The operator in the namespace trainingrun-system. Made from the chart by `make generate`.
#   kubectl apply --server-side -f manifests/install.yaml
# A dry run by the server needs the namespace, which a dry run does not make:
#   kubectl create namespace trainingrun-system
#   kubectl apply --server-side --dry-run=server -f manifests/install.yaml
"""


def main() -> None:
    """Render, clean and print."""
    rendered = subprocess.run(
        [
            sys.argv[1], "template", CHART.name, str(CHART), "--namespace", NAMESPACE,
            *(f"--set-string={value}" for value in sys.argv[2:]),
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout  # fmt: skip
    namespace = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": NAMESPACE,
            "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
        },
    }
    objects = [found for found in yaml.load_all(rendered, yaml.CSafeLoader) if found]
    for found in objects:
        labels = found["metadata"].get("labels", {})
        labels.pop("helm.sh/chart", None)
        labels.pop("app.kubernetes.io/managed-by", None)
    # helm's own order of kinds differs between versions; kubectl needs only the namespace first.
    objects.sort(key=lambda found: (found["kind"], found["metadata"]["name"]))
    text = yaml.safe_dump_all([namespace, *objects], sort_keys=False, width=100)
    sys.stdout.write(HEADER + text)


if __name__ == "__main__":
    main()
