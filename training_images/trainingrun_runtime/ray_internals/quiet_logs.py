"""What Ray prints as an error although nothing is wrong.

Read for ray 2.58-2.60: `ray/train/v2/_internal/util.py`, `ray/_private/ray_logging/__init__.py`,
`ray/train/v2/_internal/callbacks/preemption_callback.py`.
"""

import logging
import os

_SKIPPED = "RAY_DEDUP_LOGS_SKIP_REGEX"
_OWN_WATCHER = "Actor with class name: 'PreemptionWatcher' and ID: "
"""Ray Train starts this actor itself and ends it with each worker group: it need not restart."""
_OF_TRAINING_FUNCTIONS = "ray.train.v2._internal.util"
_TRACEBACK = "Error in training function:"


def leave_out() -> None:
    """Leave out of the driver's log what Ray says of its own actors; before Ray is imported."""
    others = os.environ.get(_SKIPPED)
    os.environ[_SKIPPED] = f"{others}|{_OWN_WATCHER}" if others else _OWN_WATCHER


def end_with(sentence: str) -> None:
    """Have a sentence logged for what the training function raises next, and no traceback.

    It is for what the runtime raises to end a rank in order.
    """
    logging.getLogger(_OF_TRAINING_FUNCTIONS).addFilter(_Instead(sentence))


class _Instead(logging.Filter):
    def __init__(self, sentence: str) -> None:
        super().__init__()
        self._sentence = sentence

    def filter(self, record: logging.LogRecord) -> bool:
        if record.getMessage().startswith(_TRACEBACK):
            record.msg, record.args = self._sentence, ()
            record.levelno, record.levelname = logging.INFO, "INFO"
            logging.getLogger(_OF_TRAINING_FUNCTIONS).removeFilter(self)
        return True
