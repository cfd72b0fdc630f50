"""Everything an administrator can set, in one place, read from the environment at start.

Field `workers` is variable TRAININGRUN_OPERATOR_WORKERS, and so on; the chart writes them. Names
are read without regard to case.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    PositiveInt,
    ValidationError,
    create_model,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from ..api import pod_schema
from ..api.parse import explain
from ..api.pod_schema import Fault
from ..reconciling.model import NodePrice, ReconcileSettings
from ..rendering.platforms import RenderSettings
from .notifier import ALLOWED_HOST

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
    """Runs that are reconciled in parallel. Each waits mostly for the API server; one that waits
    for over a second lets another one begin."""
    request_timeout_s: float = 30.0
    """Longest wait for an answer of the API server, in seconds."""
    retry_initial_s: float = 0.1
    """Wait after a run's first failed reconcile, in seconds; it doubles with each further one."""
    retry_max_s: float = 30.0
    """The longest such wait, in seconds."""
    resync_s: float = 600.0
    """Seconds between reconciles of every run that is not done, in case an event were lost."""
    polls_per_second: float = 50.0
    """Progress documents fetched per second over all runs: with more runs, each is polled less
    often."""
    poll_concurrency: int = 32
    """Progress documents fetched at the same time."""
    poll_timeout_s: float = 2.0
    """Longest wait for a progress document, in seconds."""
    kuberay_check_s: float = 30.0
    """Seconds between checks for a KubeRay that is missing or too old; at most 600, since a kind
    that is not checked for longer counts as a watch that hangs."""
    stuck_s: float = 180.0
    """A reconcile that takes longer than this makes the liveness probe fail, in seconds."""
    metrics_port: int = 8080
    """Port of GET /metrics (Prometheus)."""
    probe_port: int = 8081
    """Port of GET /healthz, the liveness probe, which kopf serves."""
    ready_port: int = 8082
    """Port of GET /readyz, the readiness probe."""
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    """Least severe level that is logged."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one operator."""

    operator: OperatorSettings = field(default_factory=OperatorSettings)
    render: RenderSettings = field(default_factory=RenderSettings)
    reconcile: ReconcileSettings = field(default_factory=ReconcileSettings)


class _Environment(BaseSettings):
    model_config = SettingsConfigDict(env_prefix=PREFIX, env_ignore_empty=True)


def _split(value: Any) -> Any:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _from_json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


_JSON = (NoDecode, BeforeValidator(_from_json))


def _checked(faults: Callable[[Any], list[Fault]]) -> AfterValidator:
    def check(value: Any) -> Any:
        if found := faults(value):
            problem = explain(ValidationError.from_exception_data("it", [found[0].error()]))[0]
            raise PydanticCustomError("of_a_pod", "{says}", {"says": problem.sentence})
        return value

    return AfterValidator(check)


def _of_security_context(value: Any) -> list[Fault]:
    return pod_schema.faults(value or {}, pod_schema.SECURITY_CONTEXT)


def _hosts(value: Any) -> Any:
    for entry in value:
        if not ALLOWED_HOST.fullmatch(entry):
            says = (
                f"{entry!r} has to be a host name such as hooks.example.com or *.example.com, with "
                "a port where it is not 443, and with http:// before it where it has no TLS"
            )
            raise PydanticCustomError("host", "{says}", {"says": says})
    return value


_CHECKED: dict[str, Any] = {
    "kuberay_check_s": Field(le=600),
    # They become parts of pods, which KubeRay has to be able to read.
    "history_collector": _checked(pod_schema.of_collector),
    "pod_security_context": _checked(_of_security_context),
    "notification_hosts": AfterValidator(_hosts),
}
"""Settings of which the type does not say all."""

_READ_AS: dict[Any, Any] = {
    tuple[Mapping[str, Any], ...]: Annotated[
        tuple[Annotated[Mapping[str, Any], Field(min_length=1)], ...], *_JSON
    ],
    Mapping[str, Any] | None: Annotated[Mapping[str, Any] | None, *_JSON],
    tuple[NodePrice, ...]: Annotated[tuple[NodePrice, ...], *_JSON],
    int: PositiveInt,
    float: Annotated[FiniteFloat, Field(gt=0)],
    tuple[str, ...]: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)],
}
"""By the type of a field, where that alone does not say what a variable may be."""


def _fields(section: type[Any]) -> dict[str, Any]:
    found = {}
    for one in dataclasses.fields(section):
        read_as = _READ_AS.get(one.type, one.type)
        if one.name in _CHECKED:
            read_as = Annotated[read_as, _CHECKED[one.name]]
        if not one.metadata.get("internal"):
            found[one.name] = (read_as, one.default)
    return found


_MODELS: dict[type[Any], type[BaseSettings]] = {
    section: create_model(section.__name__, __base__=_Environment, **_fields(section))
    for section in (OperatorSettings, RenderSettings, ReconcileSettings)
}


def variables() -> dict[str, object]:
    """Every environment variable that is read, with its default."""
    return {
        PREFIX + name.upper(): one.default
        for model in _MODELS.values()
        for name, one in model.model_fields.items()
    }


def from_environment() -> Settings:
    """Settings from variables; those that are absent or empty keep their defaults.

    Raises:
        SettingsError: an unknown variable with our prefix, or a value that cannot be used.
    """
    known = variables()
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise SettingsError(f"{name} is not a setting; known are {', '.join(sorted(known))}")
    try:
        return Settings(*(section(**dict(model())) for section, model in _MODELS.items()))
    except ValidationError as error:
        wrong = error.errors()[0]
        name = PREFIX + str(wrong["loc"][0]).upper()
        need = wrong["msg"].partition(", unable to parse")[0].replace("Input", "it", 1)
        raise SettingsError(f"{name} is {wrong['input']!r}; {need}") from None
