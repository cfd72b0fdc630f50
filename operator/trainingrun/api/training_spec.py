"""spec.training: what is trained."""

import json
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from .base import Model, Rule, matching
from .spec_fields import Freeform, Whole, object_name

MAX_CONFIG_CHARACTERS = 65536
"""Linux takes no environment variable of 128 KiB, and the config travels in one."""


Argument = Annotated[str, Field(max_length=4096)]
"""An argument of a command."""


class ScriptSource(Model):
    """A user's own Ray Train script, in a ConfigMap or in the image."""

    config_map: str | None = Field(default=None, max_length=253)
    """Name of the ConfigMap, in the run's namespace, that holds the script."""
    file: str = Field(default="train.py", max_length=253)
    """Key in the ConfigMap; every key is mounted beside it and can be imported."""
    path: str | None = Field(default=None, max_length=1024)
    """Path of the script in the image. Exactly one of configMap and path is set."""
    args: list[Argument] = Field(
        default_factory=list,
        max_length=100,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Arguments of the script: `sys.argv[1:]`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.configMap) != has(self.path)",
            "set exactly one of configMap (a file in a ConfigMap) and path (a file in the image)",
            lambda script: (script.config_map is None) != (script.path is None),
        ),
        object_name("config_map", "ConfigMap in the run's namespace"),
        matching(
            "path",
            r"(/[A-Za-z0-9._-]+)+",
            "must be the absolute path of a file in the image, such as /app/train.py",
        ),
        matching(
            "file",
            r"[A-Za-z0-9._-]+",
            "must be a key of the ConfigMap, such as train.py: letters, digits, '.', '_' and '-'",
        ),
    )


class TorchSettings(Model):
    """How the process group of PyTorch is formed."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """Collective library: `auto` is nccl with accelerators that have it, else gloo."""
    timeout_seconds: Whole = Field(default=1800, ge=1, le=86400)
    """Seconds after which a collective call that does not finish fails."""


class EnvVar(Model):
    """An environment variable of the head and of every worker."""

    name: str = Field(max_length=253)
    """Name of the variable."""
    value: str | None = Field(default=None, max_length=16384)
    """Its value. Leave it out and use valueFrom for anything secret."""
    value_from: Freeform | None = None
    """A Kubernetes EnvVarSource: secretKeyRef, configMapKeyRef, fieldRef or resourceFieldRef."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "name",
            r"[A-Za-z_][A-Za-z0-9_]*",
            "must be letters, digits and underscores, not beginning with a digit, such as "
            "NCCL_DEBUG",
        ),
        Rule(
            "has(self.value) != has(self.valueFrom)",
            "set exactly one of value and valueFrom",
            lambda env: (env.value is None) != (env.value_from is None),
        ),
        Rule(
            "!self.name.startsWith('TRAININGRUN_')",
            "names that begin with TRAININGRUN_ are the operator's own; choose another name",
            lambda env: not env.name.startswith("TRAININGRUN_"),
            "name",
        ),
    )


class Training(Model):
    """What is trained: a function in the image, or a script."""

    function: str | None = Field(default=None, max_length=253)
    """`module:function` in the image, called on every worker with `config`."""
    script: ScriptSource | None = None
    """A Ray Train script, run as it is. Exactly one of function and script is set."""
    config: Freeform = Field(default_factory=dict)
    """JSON object handed to the function; a script finds it in $TRAININGRUN_CONFIG."""
    torch: TorchSettings = Field(default_factory=TorchSettings)
    """How the process group of PyTorch is formed."""
    env: list[EnvVar] = Field(
        default_factory=list,
        max_length=100,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
        },
    )
    """Environment variables of the head and of every worker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.__function__) != has(self.script)",
            "set exactly one of training.function (module:function in the image) and "
            "training.script (a file in a ConfigMap or in the image)",
            lambda training: (training.function is None) != (training.script is None),
        ),
        matching(
            "function",
            r"[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*:[A-Za-z_][A-Za-z0-9_]*",
            "must be module:function, such as trainingrun_runtime.examples.digits:train",
        ),
        Rule(
            None,
            f"must be JSON (no NaN, no infinity) of at most {MAX_CONFIG_CHARACTERS} characters; "
            "put larger things into the image or the bucket",
            lambda training: _is_small_json(training.config),
            "config",
        ),
        Rule(
            None,  # the list's map type says it at the API server
            "every name may appear only once",
            lambda training: len({env.name for env in training.env}) == len(training.env),
            "env",
        ),
    )


def _is_small_json(value: Freeform) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= MAX_CONFIG_CHARACTERS
    except (TypeError, ValueError):
        return False
