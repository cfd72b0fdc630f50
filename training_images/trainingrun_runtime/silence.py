"""What a training function that reports nothing is told: nobody sees where it stands."""

import threading
from collections.abc import Callable, Collection

AFTER_S = 30.0
"""Seconds after which a function without a session, and without a report, is taken to train."""

_CALLBACKS = {
    "lightning": "add trainingrun_runtime.frameworks.lightning.SessionCallback(seed=0) to the "
    "trainer's callbacks",
    "transformers": "train with "
    "trainingrun_runtime.frameworks.transformers.prepare_trainer(trainer, seed=0)",
    "accelerate": "use prepared_session and batches of trainingrun_runtime.frameworks.accelerate",
    "deepspeed": "use trainingrun_runtime.frameworks.deepspeed.prepared_session(engine, seed=0)",
    "xgboost": "use trainingrun_runtime.frameworks.xgboost.train",
    "lightgbm": "use trainingrun_runtime.frameworks.lightgbm.train",
    "jax": "use Tree of trainingrun_runtime.frameworks.jax in a Session",
    "tensorflow": "use trainingrun_runtime.frameworks.tensorflow.fit",
}
"""By the framework's module; the first one that is imported counts, as some import others."""


def sentence(imported: Collection[str]) -> str:
    """What it costs, and how the training reports.

    Args:
        imported: names of the modules that the training process has imported.
    """
    found = next((text for name, text in _CALLBACKS.items() if name in imported), None)
    how = found or "make a trainingrun_runtime.Session, or report checkpoints to ray.train.report"
    return (
        f"the training function has reported nothing for {AFTER_S:.0f} s, so a loss costs all that "
        f"it has done; {how}"
    )


def schedule(report: Callable[[], None]) -> threading.Timer:
    """Call `report` in `AFTER_S` seconds."""
    timer = threading.Timer(AFTER_S, report)
    timer.daemon = True
    timer.start()
    return timer
