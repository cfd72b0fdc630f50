"""Other frameworks, in an image with their packages: a training process is killed in each."""

import os
import re
from typing import Any

import pytest

from e2e.cluster import OPERATOR_IMAGE, ROOT, TestCluster, load_image
from e2e.kube import run as command
from e2e.report import gaps_in_numbers, seconds_without_training, steps_lost
from e2e.runs import STEP_SECONDS, Run, kill_trainer, specification
from e2e.scenario import Scenario

IMAGE = "trainingrun-frameworks:dev"
EXTRAS = "lightning transformers xgboost"
UNDER_WAY = 50
"""Steps after which there is a checkpoint."""


@pytest.fixture(scope="module", autouse=True)
def image(operated: TestCluster) -> None:
    """The training image with the frameworks, on the nodes."""
    if not os.environ.get("E2E_SKIP_BUILD"):
        variables = [
            f"EXTRAS={EXTRAS}",
            f"TRAINING_IMAGE={IMAGE}",
            f"OPERATOR_IMAGE={OPERATOR_IMAGE}",
        ]
        command("make", f"--directory={ROOT}", "images", *variables, timeout=1800)
    load_image(operated, IMAGE, *operated.workers)


@pytest.mark.parametrize(
    ("framework", "config", "final", "lost_at_most"),
    [
        pytest.param(
            "lightning",
            {"epochs": 12, "batch_size": 32},
            "weights_sha256",
            0,
            id="lightning",
        ),
        pytest.param("transformers", {"epochs": 6}, "weights_sha256", 0, id="transformers"),
        # One where the process dies at a round's end, before the session's step is done.
        pytest.param("xgboost", {"rounds": 200}, "trees_sha256", 1, id="xgboost"),
    ],
)
def test_training_process_killed(
    scenario: Scenario, framework: str, config: dict[str, Any], final: str, lost_at_most: int
):
    run = scenario.run
    function = f"trainingrun_runtime.examples.frameworks.{framework}:train"
    training = {"function": function, "config": {**config, "step_seconds": STEP_SECONDS}}
    scenario.spec = specification(image=IMAGE, training=training)
    scenario.start_and_reach(UNDER_WAY)
    since = scenario.disturb(kill_trainer, run.kubectl, run.trainer(), run.train_on)
    status = run.succeed(timeout=400)

    steps = run.steps()
    pause, lost = seconds_without_training(steps, since), steps_lost(steps)
    print(f"{framework}: {pause:.1f} s without training, {lost} steps lost")
    # Rank 0 may be killed once the others know that its step is done, before it notes the step.
    done = "".join(loss["action"] for loss in status["disruptions"]["history"])
    saved = re.findall(r"resumed from step (\d+), which rank 1 saved", done)
    assert set(gaps_in_numbers(steps)) <= {int(step) for step in saved}
    assert lost <= lost_at_most
    assert status.get("restarts", 0) == 0
    whole = Run(run.cluster, run.kubectl, "whole")
    whole.start(scenario.spec)
    undisturbed = whole.succeed(timeout=400)
    whole.remove()
    assert status["result"]["metrics"][final] == undisturbed["result"]["metrics"][final]
