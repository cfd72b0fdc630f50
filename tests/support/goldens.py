"""Golden files: what rendering makes of the samples, and of one run per platform."""

import difflib
from pathlib import Path
from typing import Any

import yaml

from trainingrun import rendering
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.rendering import platforms

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "unit" / "golden"
BASES = {"sample": "sample-digits", "platform": "platform-generic"}
"""The cases whose golden files are whole; the other files say how their cases differ from these."""
SAMPLES = sorted((REPOSITORY / "manifests" / "samples").glob("*.yaml"))
BATCH_INFERENCE = REPOSITORY / "manifests" / "batch-inference.yaml"
"""No run, but a Job that reads one."""
IMAGE = "trainingrun-torch:dev"
"""Of runs that name none: not the release's, whose name has a version."""
LIKE_DIGITS = (
    "accelerate", "combined", "deepspeed", "fsdp", "full-fine-tuning", "jax", "lightgbm",
    "lightning", "linear", "loader", "lora", "sweep", "sweep-grid", "sweep-optuna", "tensorflow",
    "transformers", "xgboost",
)  # fmt: skip
"""Samples that differ from another one in name, function, config, image and sizes alone."""
UID = "1a2b3c4d-5e6f-4a7b-8c9d-0e1f2a3b4c5d"


def a_run(name: str = "digits", namespace: str = "team-a", **spec: Any) -> TrainingRun:
    """A valid run; `spec` replaces parts of its spec."""
    return TrainingRun.model_validate(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": UID},
            "spec": {
                "training": {"function": "trainingrun_runtime.examples.digits:train"},
                "workers": {"count": 2},
                "storage": {"uri": "s3://runs/team-a"},
                **spec,
            },
        }
    )


def sample(path: Path, **metadata: str) -> TrainingRun:
    """A sample's run when its first attempt begins; `metadata` replaces parts of its own."""
    documents = yaml.safe_load_all(path.read_text())
    run = next(document for document in documents if document["kind"] == "TrainingRun")
    storage, status = run["spec"]["storage"], {}
    if "restoreFrom" in storage:
        folder = f"{storage['uri']}/{storage['restoreFrom']['run']}-0a1b2c3d"
        status = {"restoredFrom": {"uri": folder}}
    own = {**run["metadata"], "namespace": "team-a", "uid": UID, **metadata}
    return TrainingRun.model_validate({**run, "metadata": own, "status": status})


def rendered(
    run: TrainingRun, platform: platforms.PlatformName = "generic", excluded: tuple[str, ...] = ()
) -> list[Any]:
    """Everything of one attempt, in the order in which the operator applies it."""
    settings = rendering.RenderSettings(platform=platform, token_key="0a1b2c3d", image=IMAGE)
    return [
        *rendering.support_objects(run, settings),
        rendering.token_secret(run, settings.token_key),
        rendering.attempt(run, 1, settings, excluded),
    ]


def cases() -> dict[str, list[Any]]:
    """What is rendered of each sample, under one name, and on each platform."""
    found = {f"sample-{path.stem}": rendered(sample(path, name="sample")) for path in SAMPLES}
    for platform in platforms.KNOWN:
        found[f"platform-{platform}"] = rendered(
            a_run(
                workers={
                    "count": 4,
                    "resources": {"cpu": "7500m", "memory": "48Gi"},
                    "accelerator": {"kind": "nvidia", "product": "some-gpu", "count": 2},
                    "capacity": {"type": "Spot"},
                    "placement": "StrictSpread",
                },
                scheduling={"priorityClassName": "research"},
            ),
            platform,
            excluded=("node-b", "node-a"),
        )
    return found


CASES = {
    name: found
    for name, found in cases().items()
    if name.removeprefix("sample-") not in LIKE_DIGITS
}
"""Those that have a golden file."""


def golden(name: str) -> Path:
    """A case's golden file."""
    return GOLDEN / f"{name}{'.yaml' if name in BASES.values() else '.diff'}"


def shown(name: str) -> str:
    """What should be in it: the manifests, or how they differ from those of their base."""
    base = BASES[name.partition("-")[0]]
    if name == base:
        return _text(name)
    before, after = (_text(case).splitlines(keepends=True) for case in (base, name))
    return "".join(difflib.unified_diff(before, after, base, name, n=1))


def _text(name: str) -> str:
    return yaml.safe_dump_all(CASES[name], sort_keys=False, allow_unicode=True, width=100)
