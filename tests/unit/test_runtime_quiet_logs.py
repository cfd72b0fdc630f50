"""Nothing looks like an error in a run's logs that is none: on Ray's own logging."""

import importlib
import logging
import os
import subprocess
import sys

import pytest

from trainingrun_runtime.known_errors.failure_causes import Suspended
from trainingrun_runtime.ray_internals import quiet_logs


def raised(error: Exception) -> None:
    """As Ray Train takes what the training function of a rank has raised."""
    of_ray = importlib.import_module("ray.train.v2._internal.util")
    try:
        raise error
    except Exception as found:
        of_ray.construct_user_exception_with_traceback(found)


def test_a_rank_that_is_stopped_in_order_ends_with_a_sentence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Ray's loggers hand nothing on.
    logging.getLogger("ray.train.v2._internal.util").addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "ray.train.v2._internal.util")
    quiet_logs.end_with("the training function ends: suspended after step 17")
    raised(Suspended("suspended after step 17"))
    raised(ValueError("x"))
    logging.getLogger("ray.train.v2._internal.util").removeHandler(caplog.handler)
    first, second = dict.fromkeys((one.levelname, one.getMessage()) for one in caplog.records)
    assert first == ("INFO", "the training function ends: suspended after step 17")
    assert second[0] == "ERROR", "an error of the code is shown as always"
    assert "ValueError: x" in second[1]


OF_RAY = (
    "[2026-11-27 22:51:39,743 E 8810 9055] core_worker.cc:2465: Actor with class name: "
    "'PreemptionWatcher' and ID: 'aa41' has constructor arguments in the object store"
)
SHOWS = f"""
from trainingrun_runtime.ray_internals import quiet_logs
quiet_logs.leave_out()
from ray._private import ray_logging
lines = [{OF_RAY!r}, "of somebody else", "hello"]
batch = dict(ip="127.0.0.1", pid="1", is_err=False, lines=lines, actor_name=None, task_name=None)
for part in ray_logging.stdout_deduplicator.deduplicate(batch):
    print(*part["lines"], sep="\\n")
"""


@pytest.mark.parametrize("of_the_user", [None, "somebody else"])
def test_what_ray_says_of_its_own_actor_is_not_in_the_drivers_log(of_the_user: str | None) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    if of_the_user is not None:
        environment["RAY_DEDUP_LOGS_SKIP_REGEX"] = of_the_user
    done = subprocess.run(
        [sys.executable, "-c", SHOWS], env=environment, capture_output=True, text=True, check=True
    )
    others = [] if of_the_user is not None else ["of somebody else"]
    assert done.stdout.splitlines() == [*others, "hello"]
