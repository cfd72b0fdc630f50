"""A session that cannot be made, with a fake of the worker: real ones are in `tests/local`."""

from pathlib import Path
from typing import Any

import pytest
import torch

from trainingrun_runtime import session as sessions
from trainingrun_runtime.checkpoints.encoding import NotSavable


class Worker:
    """Of one rank; a fake."""

    rank, world_size, timeout_s = 0, 1, 1.0

    def __init__(self, folder: Path) -> None:
        self.random_file = folder / "random"
        self.session: Any = None

    def register(self, session: Any) -> None:
        self.session = session

    def end(self) -> None:
        """What the real one does of a session at the end of the training function."""
        self.session.close()


class Unsavable:
    """Its state cannot be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"rule": lambda: 0}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        del state


@pytest.mark.parametrize("seed", [0, None])
def test_the_error_of_a_session_that_cannot_be_made_is_the_one_that_is_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int | None
) -> None:
    worker = Worker(tmp_path)
    monkeypatch.setattr(sessions, "this_worker", lambda: worker)
    with pytest.raises(NotSavable, match=r"it: state_dict\(\)\['rule'\] is a function"):
        sessions.Session(seed=seed, model=torch.nn.Linear(1, 1), it=Unsavable())
    worker.end()  # else its own error takes the place of that one
