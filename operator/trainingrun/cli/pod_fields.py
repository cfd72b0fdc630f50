"""Fields of a podTemplate that pods do not have, which KubeRay would drop without a word. Pure.

The names are those of the Kubernetes client, which is as new as the newest KubeRay or newer.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..api.parse import Problem
from ..api.v1alpha1 import TrainingRun

_TEMPLATES = (("podTemplate",), ("workers", "podTemplate"), ("head", "podTemplate"))
_OF = re.compile(r"(?:list\[|dict\(str, |dict\[str, )(?P<of>.+)[\])]", re.IGNORECASE)

Location = tuple[str | int, ...]


def unknown(run: TrainingRun) -> Iterator[Problem]:
    """A sentence for each unknown field of the run's pod templates and of `valueFrom`."""
    spec = run.spec
    templates = (spec.pod_template, spec.workers.pod_template, spec.head.pod_template)
    for path, template in zip(_TEMPLATES, templates, strict=True):
        yield from _unknown(template, "V1PodTemplateSpec", ("spec", *path))
    for index, variable in enumerate(spec.training.env):
        place: Location = ("spec", "training", "env", index, "valueFrom")
        yield from _unknown(variable.value_from, "V1EnvVarSource", place)


def _unknown(value: Any, kind: str, location: Location) -> Iterator[Problem]:
    if not value:
        return
    if match := _OF.fullmatch(kind):
        items: Iterator[tuple[str | int, Any]] = iter(())
        if isinstance(value, list):
            items = iter(enumerate(value))
        elif isinstance(value, Mapping):
            items = iter(value.items())
        for key, item in items:
            yield from _unknown(item, match["of"], (*location, key))
        return
    # Imported late: the client takes a second to load, and few runs have such a field.
    from kubernetes.client import models

    model = getattr(models, kind, None)
    if model is None or not isinstance(value, Mapping):
        return
    names = {json_name: python for python, json_name in model.attribute_map.items()}
    for key, item in value.items():
        if key in names:
            yield from _unknown(item, model.openapi_types[names[key]], (*location, key))
        else:
            yield Problem(_sentence((*location, key), list(names)), (*location, key))


def _sentence(location: Location, names: list[str]) -> str:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(location[-1]).lower(), lower, n=1)
    if close:
        return f"{path} is not a field of a pod; did you mean {lower[close[0]]}?"
    return f"{path} is not a field of a pod; there are {', '.join(sorted(names))}"
