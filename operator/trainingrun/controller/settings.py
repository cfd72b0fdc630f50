"""Everything an administrator can set, in one place, read from the environment at start.

Field `workers` is variable TRAININGRUN_OPERATOR_WORKERS, and so on; the chart writes them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..reconciling.reconcile_settings import ReconcileSettings
from ..rendering.render_settings import RenderSettings

PREFIX = "TRAININGRUN_OPERATOR_"


class SettingsError(Exception):
    """A setting cannot be used; the text names it, its value and what it needs."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """How this operator process works. Those of rendering and deciding have their own classes."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose runs are reconciled, separated by commas; none: every one."""
    lease_name: str = "trainingrun-operator"
    """Lease in the operator's namespace by which one of several operators leads. Two installations
    in one namespace need two names."""
    workers: int = 8
    """Runs that are reconciled in parallel. Each waits mostly for the API server."""
    request_timeout_s: float = 30.0
    """Longest wait for an answer of the API server, in seconds."""
    retry_initial_s: float = 0.1
    """Wait after a run's first failed reconcile, in seconds; it doubles with each further one."""
    retry_max_s: float = 30.0
    """The longest such wait, in seconds."""
    resync_s: float = 600.0
    """Seconds between reconciles of every run that is not done, in case an event were lost."""
    polls_per_second: float = 50.0
    """Progress documents fetched per second over all runs: with more runs, each is asked less
    often."""
    poll_concurrency: int = 32
    """Progress documents fetched at the same time."""
    poll_timeout_s: float = 2.0
    """Longest wait for a progress document, in seconds."""
    look_for_kuberay_s: float = 30.0
    """Seconds between checks for a KubeRay that is missing or too old."""
    stuck_s: float = 180.0
    """A reconcile that takes longer than this makes the liveness probe fail, in seconds."""
    metrics_port: int = 8080
    """Port of GET /metrics (Prometheus)."""
    probe_port: int = 8081
    """Port of GET /healthz, the liveness probe, which kopf serves."""
    ready_port: int = 8082
    """Port of GET /readyz, the readiness probe."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one operator."""

    operator: OperatorSettings = field(default_factory=OperatorSettings)
    render: RenderSettings = field(default_factory=RenderSettings)
    reconcile: ReconcileSettings = field(default_factory=ReconcileSettings)


def variables() -> dict[str, object]:
    """Every environment variable that is read, with its default."""
    return {
        PREFIX + one.name.upper(): one.default
        for section in (OperatorSettings, RenderSettings, ReconcileSettings)
        for one in _settings_of(section)
    }


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Settings from variables; those that are absent or empty keep their defaults.

    Raises:
        SettingsError: an unknown variable with our prefix, or a value of the wrong kind.
    """
    known = variables()
    for name in environment:
        if name.startswith(PREFIX) and name not in known:
            raise SettingsError(f"{name} is not a setting; known are {', '.join(sorted(known))}")
    settings = Settings(
        OperatorSettings(**_values(OperatorSettings, environment)),
        RenderSettings(**_values(RenderSettings, environment)),
        ReconcileSettings(**_values(ReconcileSettings, environment)),
    )
    levels = ("DEBUG", "INFO", "WARNING", "ERROR")
    if settings.operator.log_level not in levels:
        raise SettingsError(
            f"{PREFIX}LOG_LEVEL is {settings.operator.log_level!r}; use one of {', '.join(levels)}"
        )
    if settings.render.ray_auth not in ("token", "disabled"):
        raise SettingsError(
            f"{PREFIX}RAY_AUTH is {settings.render.ray_auth!r}; use token or disabled"
        )
    return settings


# Any: mypy cannot follow fields() into keyword arguments; `_value` sees to the types.
def _values(section: type[Any], environment: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in _settings_of(section):
        text = environment.get(PREFIX + one.name.upper(), "")
        if text:
            found[one.name] = _value(PREFIX + one.name.upper(), text, one.default)
    return found


def _settings_of(section: type[Any]) -> list[dataclasses.Field[Any]]:
    return [one for one in dataclasses.fields(section) if not one.metadata.get("internal")]


def _value(name: str, text: str, default: object) -> object:
    if isinstance(default, str):
        return text
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        value = int(text) if isinstance(default, int) else float(text)
    except ValueError:
        kind = "a whole number" if isinstance(default, int) else "a number of seconds"
        raise SettingsError(f"{name} is {text!r}; it needs {kind}") from None
    if not 0 < value < float("inf"):
        raise SettingsError(f"{name} is {text!r}; it needs to be greater than 0")
    return value
