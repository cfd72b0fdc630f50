"""What tells a run from another one: its config, what it trains and where, and the versions."""

import json
import logging
import os
import platform
import threading
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from itertools import islice
from typing import Any

from trainingrun_protocol.contract import WORKER_RESOURCE, RunContract
from trainingrun_protocol.secret_text import is_secret_name

from ..error_text import first_line
from ..masking import MASK, Masking
from ..store import run_settings
from ..store.lease import Lease
from ..store.run_settings import RunSettings
from ..store.storage_retry import StorageRetry

log = logging.getLogger(__name__)

MOST_VALUES, LONGEST_VALUE = 200, 500
"""Values of the config, and characters of one."""
_MOST_ARGUMENTS = 100
_PACKAGES = {
    "PyTorch": "torch",
    "Ray": "ray",
    "trainingrun": "trainingrun",
    "Transformers": "transformers",
    "PEFT": "peft",
    "Accelerate": "accelerate",
    "DeepSpeed": "deepspeed",
    "Lightning": "lightning",
    "JAX": "jax",
    "TensorFlow": "tensorflow",
    "XGBoost": "xgboost",
    "LightGBM": "lightgbm",
}


def write(lease: Lease, contract: RunContract) -> threading.Thread:
    """Write it in a thread, which waits for a store that does not answer; no start waits for it.

    Args:
        lease: This driver's.
        contract: Of the run or trial, once what it requires is installed.
    """

    def write_it() -> None:
        try:
            found = of(contract, os.environ)
            StorageRetry(lambda _: None)(lambda: run_settings.write(lease, found))
        except Exception as error:
            log.warning("the run's settings were not written: %s", first_line(error))

    thread = threading.Thread(target=write_it, name="settings", daemon=True)
    thread.start()
    return thread


def of(contract: RunContract, environment: Mapping[str, str]) -> RunSettings:
    """The document of a driver.

    Args:
        contract: Of the run or trial.
        environment: Of the driver: its secrets are masked wherever they stand.
    """
    masking = Masking(environment)
    values = _values(contract.config)
    config = {name: _shown(masking, text) for name, text in islice(values, MOST_VALUES)}
    started = contract.torchrun
    script, given = contract.script, contract.script_args
    if started is not None:
        script, given = started.script or f"-m {started.module}", started.args
    arguments = _without_secrets(given)[:_MOST_ARGUMENTS]
    resources = contract.resources_per_worker
    return RunSettings(
        attempt=contract.attempt,
        function=contract.function,
        script=script,
        script_args=[_shown(masking, each) for each in arguments],
        config=config,
        config_left_out=sum(1 for _ in values),
        workers=contract.workers,
        minimum_workers=contract.minimum_workers if contract.elastic else None,
        resources_per_worker={k: n for k, n in resources.items() if k != WORKER_RESOURCE},
        image=contract.image,
        versions={"Python": platform.python_version(), **dict(_versions())},
    )


def _values(value: Any, name: str = "", secret: bool = False) -> Iterator[tuple[str, str]]:
    """Names and texts; a text below a name that says so is masked, as in a bug report."""
    if value and isinstance(value, dict | list):
        named = value.items() if isinstance(value, dict) else enumerate(value, 1)
        if isinstance(value, dict) or any(isinstance(each, dict | list) for each in value):
            for key, each in named:
                below = f"{name}.{key}" if name else str(key)
                yield from _values(each, below, secret or is_secret_name(str(key)))
            return
        secret = secret and any(isinstance(each, str) for each in value)
    elif not isinstance(value, str):
        secret = False
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield name, MASK.decode() if secret else text


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    """Arguments without the values of options whose names say that they are secret."""
    found, secret_follows = list[str](), False
    for argument in arguments:
        name, is_assigned, _ = argument.partition("=")
        is_secret = is_secret_name(name.lstrip("-"))
        if is_assigned and is_secret:
            found.append(f"{name}={MASK.decode()}")
        else:
            hidden = secret_follows and not argument.startswith("--")
            found.append(MASK.decode() if hidden else argument)
        secret_follows = is_secret and not is_assigned and argument.startswith("-")
    return found


def _shown(masking: Masking, text: str) -> str:
    shown = masking.text(text)
    return shown if len(shown) <= LONGEST_VALUE else f"{shown[: LONGEST_VALUE - 1]}…"


def _versions() -> Iterator[tuple[str, str]]:
    for name, package in _PACKAGES.items():
        try:
            yield name, metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
