"""A manifest -> a `TrainingRun`, or one sentence that says what is wrong and what to write."""

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trainingrun_protocol.secret_text import USERINFO
from trainingrun_protocol.wire import Wire

from .base import BrokenRuleError
from .errors import RunError
from .v1alpha1 import API_VERSION, KIND, TrainingRun

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "whole_or_auto": "a whole number or auto",
    "bool_type": "true or false",
    "float_type": "a number",
    "finite_number": "a number",
    "string_type": "a string, in quotes",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "mapping_type": "a mapping",
}
_SHOWN_CHARACTERS = 80
_GPUS = frozenset({"gpu", "gpus", "nvidia.com/gpu", "numgpus", "num_gpus"})
"""What other tools call accelerators in the resources of a worker."""
_ELSEWHERE = {
    **dict.fromkeys(("replicas", "numreplicas", "numworkers", "numnodes", "worldsize"), "count"),
    **dict.fromkeys(("maxfailures", "maxretries", "backofflimit"), "maxRestarts"),
}
"""What other tools call a field: Deployments, Jobs, Ray, torchrun."""
_QUOTES = "\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb"
_BYTES = re.compile(r"([0-9]+(?:[.][0-9]+)?) ?([kKmMgGtTpP])i?[bB]")
"""A size as people write it, which is no quantity of Kubernetes."""

Location = Sequence[int | str]


class Problem(NamedTuple):
    """One thing that is wrong with a manifest."""

    sentence: str
    """What is wrong, and what to write."""
    location: Location = ()
    """Where: the keys and indexes that lead to it, from the top of the manifest."""


class InvalidRunError(RunError, ValueError):
    """A manifest that is not a TrainingRun. Its text is one sentence for the user.

    Attributes:
        problems: Each thing that is wrong, the likeliest cause first.
    """

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        more = len(self.problems) - 1
        super().__init__(self.problems[0].sentence + (f" (and {more} more)" if more else ""))


def parse(manifest: Any) -> TrainingRun:
    """The TrainingRun that a manifest describes.

    Raises:
        InvalidRunError: it describes none. No secret in it is repeated in the text.
    """
    if not isinstance(manifest, Mapping):
        sentence = f"this is no TrainingRun; write a mapping with kind: {KIND}"
        raise InvalidRunError([Problem(sentence)])
    for field, wanted in (("apiVersion", API_VERSION), ("kind", KIND)):
        if manifest.get(field) != wanted:
            found = f"is {_shown(manifest[field])}" if field in manifest else "is missing"
            sentence = f"{field} {found}; write {field}: {wanted}"
            raise InvalidRunError([Problem(sentence, (field,))])
    try:
        return TrainingRun.model_validate(manifest, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidRunError(explain(error)) from None


def explain(error: ValidationError) -> list[Problem]:
    """Each problem in what was validated as a TrainingRun, the cause first."""
    # A misspelt field is usually also a missing one: the unknown name is the thing to repair.
    found = sorted(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    return [
        Problem(_sentence(detail) + _quoted_otherwise(detail["input"]), _location(detail))
        for detail in found
    ]


def _quoted_otherwise(value: Any) -> str:
    """Of a text in the quotes of a word processor, which are characters of the text to YAML."""
    if isinstance(value, str) and value and value[0] in _QUOTES and value[-1] in _QUOTES:
        return "; write the plain quotes \" or ' around it, not typographic ones"
    return ""


def _location(detail: ErrorDetails) -> Location:
    """Where a problem is, down to the field that a rule names."""
    broken = detail.get("ctx", {}).get("error")
    path = broken.rule.path if isinstance(broken, BrokenRuleError) else ""
    return (*detail["loc"], *path.split(".")) if path else detail["loc"]


def _sentence(detail: ErrorDetails) -> str:
    kind, location, value = detail["type"], detail["loc"], detail["input"]
    context = detail.get("ctx", {})
    path = path_of(location)
    if kind == "extra_forbidden":
        return f"{path} is not a field; {_known(location, value)}"
    if kind == "missing":
        return f"{path} is missing{_meaning(location)}{_elsewhere(location)}"
    if kind == "pod_field_unknown":
        names = detail["msg"].split()
        advice = did_you_mean(location[-1], names) or f"there are {', '.join(names)}"
        return f"{path} is not a field of a pod; {advice}"
    if kind == "pod_field_missing":
        return f"{path} is missing; {detail['msg']}"
    broken = context.get("error")
    if isinstance(broken, BrokenRuleError):
        return _broken(broken, location, value)
    shown = f"{path} is {'wrong' if _secret(location) else _shown(value)}"
    if kind == "literal_error":
        return f"{shown}; write {_choices(location) or context['expected']}"
    if kind == "pod_field":
        return f"{shown}; {detail['msg']}{_meant(value)}"
    if kind in _EXPECTED:
        return f"{shown}; write {_EXPECTED[kind]}{_shape(location, value)}"
    needs = {
        "greater_than_equal": "at least {ge}",
        "less_than_equal": "at most {le}",
        "string_too_short": "at least {min_length} characters",
        "string_too_long": "at most {max_length} characters",
        "too_long": "at most {max_length} entries",
    }
    if kind in needs:
        return f"{shown}; write {needs[kind].format(**context)}"
    if isinstance(value, Mapping | list):
        shown = path
    return f"{shown}: {detail['msg']}"


def _broken(broken: BrokenRuleError, location: Location, value: Any) -> str:
    rule = broken.rule
    below = rule.path.split(".") if rule.path else []
    for part in below:
        value = value.get(part) if isinstance(value, Mapping) else None
    location = (*location, *below)
    where, shows = path_of(location) or "the object", not _secret(location)
    if shows and isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"{where} is {_shown(value)}: {rule.message}{_meant(value)}"
    return f"{where}: {rule.message}"


def _meant(value: Any) -> str:
    """The quantities that a size such as 16GB may mean."""
    size = _BYTES.fullmatch(value) if isinstance(value, str) else None
    if size is None:
        return ""
    number, unit = size[1], size[2].upper()
    return f"; did you mean {number}{'k' if unit == 'K' else unit} or {number}{unit}i?"


def _shape(location: Location, value: Any) -> str:
    """The fields of a mapping, or of those in a list, that was written as something else."""
    field = _field_at(location)
    model = _inner_model(field.annotation) if field else None
    if model is None:
        return ""
    if isinstance(value, str):
        for inner in _fields(model).values():
            for option in get_args(inner.annotation):
                if isinstance(option, str) and option.lower() == value.lower():
                    return f": {{{inner.alias}: {option}}}"
    of = " of mappings" if get_origin(field.annotation) is list else ""
    return f"{of} with {', '.join(str(inner.alias) for inner in _fields(model).values())}"


def path_of(location: Location) -> str:
    """A location as users write it, such as `spec.training.env[0].name`."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _model_at(location: Location) -> type[Wire] | None:
    """The model whose fields are at a location; None where there is none."""
    model: type[Wire] | None = TrainingRun
    for part in location:
        if isinstance(part, int):
            continue  # an item of a list, whose model the list's field already gave
        field = next((f for f in _fields(model).values() if f.alias == part), None)
        model = _inner_model(field.annotation) if field else None
    return model


def _fields(model: type[Wire] | None) -> Mapping[str, Any]:
    return model.model_fields if model else {}


def _inner_model(annotation: Any) -> type[Wire] | None:
    if isinstance(annotation, type) and issubclass(annotation, Wire):
        return annotation
    return next((model for arg in get_args(annotation) if (model := _inner_model(arg))), None)


def _field_at(location: Location) -> Any:
    if isinstance(location[-1], int):
        location = location[:-1]  # one of a list's words
    fields = _fields(_model_at(location[:-1])).values()
    return next((field for field in fields if field.alias == location[-1]), None)


def _known(location: Location, value: Any) -> str:
    if str(location[-1]).lower() in _GPUS:
        count = value if type(value) is int else 1
        return f"write spec.workers.accelerator: {{kind: nvidia, count: {count}}}"
    model = _model_at(location[:-1])
    names = [str(field.alias) for field in _fields(model).values()]
    meant = _ELSEWHERE.get(str(location[-1]).lower().replace("_", ""))
    if meant in names:
        return f"did you mean {meant}?"
    place = path_of(location[:-1]) or "a TrainingRun"
    return did_you_mean(location[-1], names) or f"{place} has {', '.join(sorted(names))}"


def did_you_mean(word: int | str, names: Collection[str]) -> str:
    """A question with the name that comes closest to a word; empty: none does."""
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(str(word).lower().replace("_", ""), lower, n=1)
    return f"did you mean {lower[close[0]]}?" if close else ""


def _meaning(location: Location) -> str:
    field = _field_at(location)
    text = " ".join((field.description or "").split()) if field else ""
    first = text.split(". ")[0].rstrip(".")
    return f"; add it: {first[0].lower()}{first[1:]}" if first else "; add it"


def _elsewhere(location: Location) -> str:
    named = tuple(location) in (("spec", "storage"), ("spec", "storage", "uri"))
    return ", or have TrainingDefaults of its namespace set storage.uri" if named else ""


def _choices(location: Location) -> str:
    field = _field_at(location)
    options = [option for option in get_args(field.annotation) if isinstance(option, str)]
    if not options:  # Literal[...] | None, or a list of them
        options = [o for arg in get_args(field.annotation) for o in get_args(arg)]
    return " or ".join(filter(None, [", ".join(options[:-1]), *options[-1:]]))


def _secret(location: Location) -> bool:
    """Whether a secret may be there, also by mistake, in place of what names it."""
    if "webhook" in location or "credentialsSecret" in location:
        return True
    return "env" in location and location[-1] != "name"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        # A URL may carry credentials before its host or in its query.
        value = re.sub(r"//[^/]*@", "//***@", re.sub(USERINFO, "***", value))
        value = re.sub(r"[?#].*", "?***", value, flags=re.DOTALL)
        if len(value) > _SHOWN_CHARACTERS:
            value = value[:_SHOWN_CHARACTERS] + "…"
    return json.dumps(value, ensure_ascii=False, default=str)
