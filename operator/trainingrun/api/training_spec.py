"""spec.training: what is trained."""

import json
import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from . import pod_schema
from .base import (
    Freeform,
    Model,
    Rule,
    Whole,
    is_own_variable,
    list_by,
    matching,
    object_name,
    own_variable_cel,
)
from .storage_spec import BUCKET_PATTERN, CLAIM_PATTERN

MAX_CONFIG_CHARACTERS = 65536
"""Linux takes no environment variable of 128 KiB, and the config is in one."""
MAX_REQUIREMENTS_CHARACTERS = MAX_ARGS_CHARACTERS = 32768
"""They are in an environment variable of the head as well: `v1alpha1.MAX_CONTRACT_BYTES`."""
MAX_ENV_CHARACTERS = 262144
"""Head and workers have them alike, and etcd takes no object of 1.5 MiB."""


Argument = Annotated[str, Field(max_length=4096)]
"""An argument of a command."""

Requirement = Annotated[str, Field(max_length=2048)]
"""A requirement as pip reads it."""


_REQUIREMENT = r"[^-#\s][^\r\n]*"
_RELATIVE = (
    "is relative to training.code, which is not set; set it, or write the absolute path of a file "
    "in the image"
)
_CREDENTIALS = r"https?://[^/\s@]*@"
_MODULE = r"[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*"
_SHORT_ARGS = Rule(
    f"!has(self.args) || self.args.map(a, size(a)).sum() <= {MAX_ARGS_CHARACTERS}",
    f"must have at most {MAX_ARGS_CHARACTERS} characters in all; put larger things into a file",
    lambda started: sum(map(len, started.args)) <= MAX_ARGS_CHARACTERS,
    "args",
)


def _arguments() -> Any:
    extra: dict[str, Any] = {"x-kubernetes-list-type": "atomic"}
    return Field(default_factory=list, max_length=100, json_schema_extra=extra)


class ScriptSource(Model):
    """A user's own script, in a ConfigMap, in the image or in `training.code`."""

    config_map: str | None = Field(default=None, max_length=253)
    """Name of the ConfigMap, in the run's namespace, that holds the script."""
    file: str = Field(default="train.py", max_length=253)
    """Key in the ConfigMap; every key is mounted beside it and can be imported."""
    path: str | None = Field(default=None, max_length=1024)
    """Path of the script: absolute in the image, or relative to the folder of `training.code`.
    Exactly one of configMap and path is set."""
    args: list[Argument] = _arguments()
    """Arguments of the script: `sys.argv[1:]`."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.configMap) != has(self.path)",
            "set exactly one of configMap (a file in a ConfigMap) and path (a file in the image or "
            "in training.code)",
            lambda script: (script.config_map is None) != (script.path is None),
        ),
        object_name("config_map", "ConfigMap in the run's namespace"),
        matching(
            "path",
            # No part of it consists of dots alone: it would leave the folder.
            r"/?[.]*[A-Za-z0-9_-][A-Za-z0-9._-]*(/[.]*[A-Za-z0-9_-][A-Za-z0-9._-]*)*",
            "must be the path of a file, absolute in the image, such as /app/train.py, or relative "
            "to training.code, such as train.py",
        ),
        matching(
            "file",
            r"[.]?[A-Za-z0-9_-][A-Za-z0-9._-]*",
            "must be a key of the ConfigMap, such as train.py: letters, digits, '.', '_' and '-'",
        ),
        _SHORT_ARGS,
    )


class Torchrun(Model):
    """A script or module that is started with torchrun elsewhere. Each worker runs it in a process
    of its own, with the variables that torchrun sets. `$(NAME)` in args is the value of a variable,
    such as $(TRAININGRUN_CHECKPOINT_DIR), the folder whose files are the run's checkpoints.
    """

    script: ScriptSource | None = None
    """The script."""
    module: str | None = Field(default=None, max_length=253)
    """In place of a script a module, as with `torchrun -m`, in the image, in `code` or in
    `requirements`. Exactly one of script and module is set."""
    args: list[Argument] = _arguments()
    """Arguments of the module; those of a script are in script.args."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.script) != has(self.module)",
            "set exactly one of script (a file) and module (as with torchrun -m)",
            lambda torchrun: (torchrun.script is None) != (torchrun.module is None),
        ),
        matching(
            "module",
            _MODULE,
            "must be the name of a module, such as my_package.train; a file is named by script",
        ),
        Rule(
            "!has(self.module) || !self.module.endsWith('.py')",
            "names a file; name its module, without .py, or set script.path",
            lambda torchrun: torchrun.module is None or not torchrun.module.endswith(".py"),
            "module",
        ),
        Rule(
            "!has(self.args) || self.args.size() == 0 || has(self.module)",
            "are those of a module; put the arguments of a script into script.args",
            lambda torchrun: not torchrun.args or torchrun.module is not None,
            "args",
        ),
        _SHORT_ARGS,
    )

    @property
    def all_args(self) -> list[Argument]:
        """The arguments of the script or module."""
        return self.script.args if self.script is not None else self.args


class CodeSource(Model):
    """The user's own code, which is not in the image."""

    uri: str = Field(max_length=1024)
    """Zip file in a bucket that `storage.endpoint` and the run's credentials give access to, such
    as `s3://runs/code/train.zip`, or on the run's own claim. It is unpacked on every pod; its
    folder is the working directory, and what is in it can be imported. All attempts use the same
    content."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "uri",
            rf"({BUCKET_PATTERN})/[^@?#\s]*[.]zip|{CLAIM_PATTERN}/[A-Za-z0-9._-]+[.]zip|"
            r"file:///[^@?#\s]*[.]zip",
            "must be a .zip file in a bucket, such as s3://bucket/folder/code.zip (or gs, az, "
            "abfs, abfss, pvc, file), without credentials, query or spaces",
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
    value_from: Annotated[Freeform, pod_schema.checked(pod_schema.SOURCE)] | None = None
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
            f"!({own_variable_cel('self.name')})",
            "is set by the operator or by KubeRay in every pod; choose another name",
            lambda env: not is_own_variable(env.name),
            "name",
        ),
    )


class Training(Model):
    """What is trained: a function or a script, in the image or in code of the user's own."""

    function: str | None = Field(default=None, max_length=253)
    """`module:function` in the image or in `code`, called on every worker with `config`."""
    script: ScriptSource | None = None
    """A Ray Train script, run as it is, on the head."""
    torchrun: Torchrun | None = None
    """A script or module of PyTorch that is started with torchrun elsewhere, run as it is, on every
    worker. Exactly one of function, script and torchrun is set."""
    code: CodeSource | None = None
    """Code that is not in the image; `trainingrun submit --code FOLDER` uploads it."""
    requirements: list[Requirement] = Field(
        default_factory=list,
        max_length=200,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    """Packages that are not in the image, as lines for pip, such as `einops==0.8.0`, or
    `./wheels/mine.whl` in `code`. The head installs them at the start of each attempt, beside those
    of the image, and passes them to the workers; Ray and PyTorch stay those of the image. pip reads
    its variables from `env`: PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX."""
    config: Freeform = Field(default_factory=dict)
    """JSON object handed to the function; a script finds it in $TRAININGRUN_CONFIG."""
    torch: TorchSettings = Field(default_factory=TorchSettings)
    """How the process group of PyTorch is formed."""
    env: list[EnvVar] = Field(
        default_factory=list, max_length=100, json_schema_extra=list_by("name")
    )
    """Environment variables of the head and of every worker."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.__function__), has(self.script), has(self.torchrun)]"
            ".filter(given, given).size() == 1",
            "set exactly one of training.function (module:function), training.script (a Ray Train "
            "script) and training.torchrun (a script or module that torchrun starts elsewhere); "
            "scripts are a file in a ConfigMap, in the image or in training.code",
            lambda training: (
                [training.function, training.script, training.torchrun].count(None) == 2
            ),
        ),
        matching(
            "function",
            rf"{_MODULE}:[A-Za-z_][A-Za-z0-9_]*",
            "must be module:function, such as trainingrun_runtime.examples.digits:train",
        ),
        Rule(
            "!has(self.__function__) || !self.__function__.contains('.py:')",
            "names a file; name its module, without .py, such as train:main",
            lambda training: training.function is None or ".py:" not in training.function,
            "function",
        ),
        Rule(
            "!has(self.script) || !has(self.script.path) || self.script.path.startsWith('/') || "
            "has(self.code)",
            _RELATIVE,
            lambda training: (
                training.code is not None
                or training.script is None
                or training.script.path is None
                or training.script.path.startswith("/")
            ),
            "script.path",
        ),
        Rule(
            "!has(self.torchrun) || !has(self.torchrun.script) || "
            "!has(self.torchrun.script.path) || self.torchrun.script.path.startsWith('/') || "
            "has(self.code)",
            _RELATIVE,
            lambda training: (
                training.code is not None
                or training.torchrun is None
                or training.torchrun.script is None
                or training.torchrun.script.path is None
                or training.torchrun.script.path.startswith("/")
            ),
            "torchrun.script.path",
        ),
        Rule(
            f"!has(self.requirements) || self.requirements.all(r, r.matches(r'^{_REQUIREMENT}$'))",
            "every item must be one requirement, such as einops==0.8.0; pip's options are "
            "variables in training.env, such as PIP_INDEX_URL",
            lambda training: all(re.fullmatch(_REQUIREMENT, r) for r in training.requirements),
            "requirements",
        ),
        Rule(
            "!has(self.requirements) || "
            f"!self.requirements.exists(r, r.matches(r'{_CREDENTIALS}'))",
            "no item may hold credentials; put them into a Secret, and have training.env set "
            "PIP_INDEX_URL or PIP_EXTRA_INDEX_URL from it",
            lambda training: not any(re.search(_CREDENTIALS, r) for r in training.requirements),
            "requirements",
        ),
        Rule(
            "!has(self.requirements) || "
            f"self.requirements.map(r, size(r)).sum() <= {MAX_REQUIREMENTS_CHARACTERS}",
            f"must have at most {MAX_REQUIREMENTS_CHARACTERS} characters in all; put the packages "
            "into the image",
            lambda training: (
                sum(len(line) for line in training.requirements) <= MAX_REQUIREMENTS_CHARACTERS
            ),
            "requirements",
        ),
        Rule(
            None,
            f"must be JSON (no NaN, no infinity) of at most {MAX_CONFIG_CHARACTERS} characters of "
            "ASCII (others as \\u escapes); put larger things into the image or the bucket",
            lambda training: _is_small_json(training.config),
            "config",
        ),
        Rule(
            f"!has(self.env) || self.env.map(e, has(e.value) ? size(e.value) : 0).sum() <= "
            f"{MAX_ENV_CHARACTERS}",
            f"must have at most {MAX_ENV_CHARACTERS} characters in all values; put larger things "
            "into a ConfigMap or a Secret and use valueFrom, or into a file",
            lambda training: (
                sum(len(variable.value or "") for variable in training.env) <= MAX_ENV_CHARACTERS
            ),
            "env",
        ),
        Rule(
            None,  # the list's map type says it at the API server
            "every name may appear only once",
            lambda training: len({env.name for env in training.env}) == len(training.env),
            "env",
        ),
    )

    @property
    def any_script(self) -> ScriptSource | None:
        """The script of `script` or `torchrun`; None: a function is trained."""
        return self.torchrun.script if self.torchrun is not None else self.script


def _is_small_json(value: Freeform) -> bool:
    try:
        return len(json.dumps(value, allow_nan=False)) <= MAX_CONFIG_CHARACTERS
    except (TypeError, ValueError):
        return False
