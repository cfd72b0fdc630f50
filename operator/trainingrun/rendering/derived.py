"""What follows from a pod as it is after the merge with the user's podTemplate.

Its preStop hook, how long that hook may wait, and where Python finds modules: rendered before the
merge, a podTemplate would replace them, or what they rest on, without a word.
"""

from collections.abc import Mapping
from typing import Any

from trainingrun_protocol.contract import NOTICE_ENV

from .platforms import EXIT_SECONDS

HOOK = ["trainingrun-prestop"]
"""Passes the notice to the training, and ends once its checkpoint is saved."""

_BOTH_HOOKS = 'trainingrun-prestop; exec "$@"'
_USERS_PATH = "TRAININGRUN_USERS_PYTHONPATH"
_KUBERNETES_GRACE_S = 30
"""Of a pod that names no grace period."""


def complete(pod: dict[str, Any], container: str, import_folder: str | None) -> None:
    """Add it to a merged pod template.

    Args:
        pod: The template; what has the wrong shape is left to the API server.
        container: Name of Ray's container.
        import_folder: Where the script's own modules are; None: Ray finds them.
    """
    spec = pod.get("spec")
    if not isinstance(spec, Mapping):
        return
    containers = spec.get("containers")
    for found in containers if isinstance(containers, list) else ():
        if not isinstance(found, dict) or found.get("name") != container:
            continue
        _add_hook(found)
        env = found.get("env")
        if isinstance(env, list):
            _add_notice(env, spec)
            if import_folder is not None:
                _add_import_folder(env, import_folder)


def _add_hook(container: dict[str, Any]) -> None:
    lifecycle = container.setdefault("lifecycle", {})
    if not isinstance(lifecycle, dict):
        return
    wanted = lifecycle.get("preStop")
    command = _command(wanted) if isinstance(wanted, Mapping) else []
    if command:
        # The user's hook last: it may end what the checkpoint goes through, such as a mesh's proxy.
        both = ["bash", "-c", _BOTH_HOOKS, "preStop", *command]
        lifecycle["preStop"] = {"exec": {"command": both}}
    else:
        lifecycle["preStop"] = {"exec": {"command": HOOK}}


def _command(hook: Mapping[str, Any]) -> list[str]:
    run, sleep = hook.get("exec"), hook.get("sleep")
    if isinstance(run, Mapping) and isinstance(run.get("command"), list):
        return [str(part) for part in run["command"]]
    if isinstance(sleep, Mapping) and "seconds" in sleep:
        return ["sleep", str(sleep["seconds"])]
    return []


def _add_notice(env: list[Any], spec: Mapping[str, Any]) -> None:
    grace_s = spec.get("terminationGracePeriodSeconds")
    left_s = (grace_s if isinstance(grace_s, int) else _KUBERNETES_GRACE_S) - EXIT_SECONDS
    env.append({"name": NOTICE_ENV, "value": str(max(left_s, 0))})


def _add_import_folder(env: list[Any], folder: str) -> None:
    """In front of the user's own $PYTHONPATH, as Python puts a script's folder."""
    for place, variable in enumerate(env):
        if not isinstance(variable, Mapping) or variable.get("name") != "PYTHONPATH":
            continue
        if "valueFrom" in variable:
            env[place] = {**variable, "name": _USERS_PATH}
            folder = f"{folder}:$({_USERS_PATH})"
        else:
            del env[place]
            folder = ":".join(filter(None, (folder, variable.get("value"))))
        break
    env.append({"name": "PYTHONPATH", "value": folder})
