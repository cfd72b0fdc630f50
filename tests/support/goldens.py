"""Golden files: what rendering makes of the samples, and of one run per platform."""

from pathlib import Path
from typing import Any

import yaml

from trainingrun import rendering
from trainingrun.api.v1alpha1 import TrainingRun
from trainingrun.rendering import platforms

REPOSITORY = Path(__file__).parents[2]
GOLDEN = REPOSITORY / "tests" / "unit" / "golden"
SAMPLES = sorted((REPOSITORY / "manifests" / "samples").glob("*.yaml"))
BATCH_INFERENCE = REPOSITORY / "manifests" / "batch-inference.yaml"
"""No run, but a Job that reads one."""
IMAGE = "trainingrun-torch:dev"
"""Of runs that name none: not the release's, whose name has a version."""
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


def sample(path: Path) -> TrainingRun:
    """The run in a sample file as it is when its first attempt begins."""
    documents = yaml.safe_load_all(path.read_text())
    run = next(document for document in documents if document["kind"] == "TrainingRun")
    storage, status = run["spec"]["storage"], {}
    if "restoreFrom" in storage:
        folder = f"{storage['uri']}/{storage['restoreFrom']['run']}-0a1b2c3d"
        status = {"restoredFrom": {"uri": folder}}
    metadata = {**run["metadata"], "namespace": "team-a", "uid": UID}
    return TrainingRun.model_validate({**run, "metadata": metadata, "status": status})


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
    """All golden files: their names without suffix, and what should be in them."""
    found = {f"sample-{path.stem}": rendered(sample(path)) for path in SAMPLES}
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
