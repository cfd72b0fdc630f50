"""podTemplate: those fields of a user's PodTemplateSpec that the operator depends on.

Each other field is kept as it is, and the API server checks it with the pod.
"""

from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from .base import Model, Rule
from .spec_fields import Freeform, Whole, is_own_variable, own_variable_cel, without_default

RAY_CONTAINERS = ("ray-head", "ray-worker")
"""The containers that run Ray, in the head pod and in a worker pod."""
OWN_VOLUMES = ("script", "shared-memory", "tokens")
"""Volumes that are rendered."""
SHORTEST_GRACE_S, LONGEST_GRACE_S = 10, 86400
"""Seconds of a pod's grace period: Ray takes up to 5 to end, a checkpoint has the rest."""

_NOT_RAYS = f"!has(self.name) || !(self.name in {list(RAY_CONTAINERS)})"


class _Part(Model):
    """A part of a pod template. A field's default stands for its absence, since null would remove
    what is rendered.
    """

    model_config = ConfigDict(extra="allow")


class _Hook(_Part):
    http_get: Freeform = Field(default={}, json_schema_extra=without_default)
    """Not in Ray's container."""
    tcp_socket: Freeform = Field(default={}, json_schema_extra=without_default)
    """Not in Ray's container."""


class _Lifecycle(_Part):
    pre_stop: _Hook = Field(default=_Hook(), json_schema_extra=without_default)
    """Runs before the container is ended; in Ray's container after the operator's own hook."""


class _Variable(_Part):
    name: str = Field(default="", max_length=253, json_schema_extra=without_default)
    """Name of the variable."""


class _Container(_Part):
    name: str = Field(default="", json_schema_extra=without_default)
    """ray-head and ray-worker are Ray's; each other one is a sidecar."""
    env: list[_Variable] = Field(default_factory=list, max_length=200)
    """Its environment variables; those of one name replace each other."""
    lifecycle: _Lifecycle = Field(default=_Lifecycle(), json_schema_extra=without_default)
    """What runs at its start and before its end."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"{_NOT_RAYS} || !has(self.env) || "
            f"self.env.all(v, !has(v.name) || !({own_variable_cel('v.name')}))",
            "no variable of Ray's container may be one that the operator or KubeRay sets; choose "
            "another name",
            lambda container: (
                container.name not in RAY_CONTAINERS
                or not any(is_own_variable(variable.name) for variable in container.env)
            ),
            "env",
        ),
        Rule(
            f"{_NOT_RAYS} || !has(self.lifecycle) || !has(self.lifecycle.preStop) || "
            "(!has(self.lifecycle.preStop.httpGet) && !has(self.lifecycle.preStop.tcpSocket))",
            "must be exec or sleep in Ray's container, where it begins once the checkpoint of a "
            "preemption is saved",
            lambda container: (
                container.name not in RAY_CONTAINERS
                or not {"http_get", "tcp_socket"} & container.lifecycle.pre_stop.model_fields_set
            ),
            "lifecycle.pre_stop",
        ),
    )


class _Volume(_Part):
    name: str = Field(default="", json_schema_extra=without_default)
    """Name of the volume."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!has(self.name) || !(self.name in {list(OWN_VOLUMES)})",
            f"must not be {', '.join(OWN_VOLUMES[:-1])} or {OWN_VOLUMES[-1]}, the operator's own "
            "volumes; choose another name, and set the size of /dev/shm by "
            "workers.resources.sharedMemory",
            lambda volume: volume.name not in OWN_VOLUMES,
            "name",
        ),
    )


class _PodSpec(_Part):
    restart_policy: str = Field(default="Never", json_schema_extra=without_default)
    """Never."""
    termination_grace_period_seconds: Whole = Field(
        default=SHORTEST_GRACE_S, json_schema_extra=without_default
    )
    """Seconds from the notice of a preemption to the end of the pod; the checkpoint has all but 5.
    A cloud may grant less. Default: what the platform grants."""
    active_deadline_seconds: Whole = Field(default=0, json_schema_extra=without_default)
    """Not to be set."""
    node_name: str = Field(default="", json_schema_extra=without_default)
    """Not to be set."""
    containers: list[_Container] = Field(default_factory=list, max_length=50)
    """Containers, merged by name."""
    volumes: list[_Volume] = Field(default_factory=list, max_length=200)
    """Volumes, merged by name."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.restartPolicy) || self.restartPolicy == 'Never'",
            "must be Never, or left out: a pod whose container has ended is replaced as a whole",
            lambda spec: spec.restart_policy == "Never",
            "restart_policy",
        ),
        Rule(
            "!has(self.terminationGracePeriodSeconds) || "
            f"(self.terminationGracePeriodSeconds >= {SHORTEST_GRACE_S} && "
            f"self.terminationGracePeriodSeconds <= {LONGEST_GRACE_S})",
            f"must be {SHORTEST_GRACE_S} to {LONGEST_GRACE_S}: Ray takes up to 5 s to end, and the "
            "checkpoint of a preemption has the rest",
            lambda spec: (
                SHORTEST_GRACE_S <= spec.termination_grace_period_seconds <= LONGEST_GRACE_S
            ),
            "termination_grace_period_seconds",
        ),
        Rule(
            "!has(self.activeDeadlineSeconds)",
            "must not be set: a pod that it ends is replaced again and again; set "
            "spec.activeDeadlineSeconds of the TrainingRun",
            lambda spec: "active_deadline_seconds" not in spec.model_fields_set,
            "active_deadline_seconds",
        ),
        Rule(
            "!has(self.nodeName)",
            "must not be set: it passes by the scheduler, and pods for a node that does not exist "
            "are deleted again and again; write nodeSelector: {kubernetes.io/hostname: NODE}",
            lambda spec: "node_name" not in spec.model_fields_set,
            "node_name",
        ),
    )


class _PodTemplate(_Part):
    spec: _PodSpec = Field(default=_PodSpec(), json_schema_extra=without_default)
    """The PodSpec."""


class _CheckedBy:
    """The value stays the mapping that was written, once the model has accepted it."""

    def __init__(self, model: type[Model]) -> None:
        self._model = model

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def check(value: Any, validate: core_schema.ValidatorFunctionWrapHandler) -> Any:
            validate(value)
            return value

        checked = core_schema.no_info_wrap_validator_function(
            check, handler.generate_schema(self._model)
        )
        return core_schema.chain_schema(
            [checked, handler(source)],
            serialization=core_schema.plain_serializer_function_ser_schema(lambda value: value),
        )


PodTemplate = Annotated[Freeform, _CheckedBy(_PodTemplate)]
"""A PodTemplateSpec as a mapping."""
