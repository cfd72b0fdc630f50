"""Secrets taken out of objects and texts that are handed to somebody else. Pure.

What a secret is can be seen in three ways, and each of them is used: by where it stands (the value
of an environment variable, an argument, an annotation), by the name beside it (`password=`), and by
its form (a private key, a token of a known service). A value that is secret at one place is taken
out of every other text, too: a log line, an event, a message.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trainingrun_protocol.secret_text import USERINFO, forms, is_secret_name, is_telling, parts

from ..api.base import is_own_variable

MASK = "***"
_LONGEST_LINE = 4096
"""Characters of a line; the rest is cut, so that no pattern is tried on a line without an end."""
_SHOWN_ANNOTATIONS = ("trainingrun.dev", "ray.io")
"""Domains of the annotations whose values stay."""
_OF_RAY = ("RAY_", "KUBERAY_", "FQ_RAY_IP")
_ORDINARY = frozenset({"enabled", "disabled", "default", "warning", "offline", "online"})

_BELOW_CONFIG = ("config", "parameters")
"""Fields below which the names are the user's own."""
_OF_DRIVERS = ("volumeAttributes", "options")
"""Maps of a CSI volume and of a FlexVolume that a driver reads: some have keys in them."""

_BEFORE_VALUE = r"[\"']?(?:(?:bearer|basic)\s{1,3})?"
_NAMED = re.compile(
    rf"(?<![\w.-])(?:(?P<name>[A-Za-z][\w.-]*+)[\"']?\s{{0,3}}[:=]\s{{0,3}}"
    rf"|--(?P<option>[\w-]++)\s{{1,3}}(?!-)){_BEFORE_VALUE}(?=(?P<value>[^\s\"',;&]{{6,}}))",
    re.IGNORECASE,
)
"""What stands before a value that is assigned to a name, or follows an option; the value may begin
with another name, as in a URL.
"""
_PASSWORDS = ("pwd", "_pass", "-pass", ".pass")
"""Names in a text that end so, and are not telling otherwise."""
_NUMBER = re.compile(r"[-+]?[\d.,:/%eE]+(?:[a-zA-Z]{0,2})")
_FORMS = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[A-Za-z0-9+/=\\\s]{0,16384}"
    r"|(?<![\w-])(?:AKIA|ASIA)[A-Z0-9]{16}(?!\w)"
    r"|(?<![\w-])(?:gh[pousr]_|github_pat_|glpat-|hf_|sk-|xox[abprs]-|AIza|ya29\.|dapi)[\w-]{16,}"
    r"|(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"
    r"|(?i:(?<=bearer )|(?<=basic ))[\w.~+/=-]{12,}"
    rf"|{USERINFO}"
    r"|(?i:(?<=&sig=)|(?<=\?sig=))[^&\s\"']+"
)
"""A private key, keys of clouds and tokens of known services, and the password of a URL."""


class Masking:
    """Knows the secrets that stand in objects."""

    def __init__(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Collect them from manifests as the API server has them."""
        found: set[str] = set()
        known = set(_ORDINARY)
        for each in objects:
            metadata = each.get("metadata") or {}
            known |= {str(metadata.get(key)) for key in ("name", "namespace", "uid")}
            found |= {line for value in _secrets(each) for line in parts(value)}
        found = {text for text in found - known if not _NUMBER.fullmatch(text)}
        # The longest first, as one may begin with another.
        self._secrets = sorted(
            {form for secret in found for form in forms(secret)},
            key=lambda text: (-len(text), text),
        )

    def text(self, text: str) -> str:
        """The text without secrets; a line of more than 4096 characters is cut."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        text = "".join(map(_cut, text.splitlines(keepends=True)))
        return _without_values(_FORMS.sub(MASK, text))

    def manifest(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The object without secrets, and without managedFields."""
        return {key: self._value(value, (key,)) for key, value in found.items()}

    def _value(self, value: Any, path: tuple[str, ...]) -> Any:
        if _is_secret(path, value):
            return MASK
        if isinstance(value, Mapping):
            return {
                self.text(str(key)): self._value(each, (*path, str(key)))
                for key, each in value.items()
                if (*path[-1:], key) != ("metadata", "managedFields")
            }
        if isinstance(value, list):
            return [self._value(each, (*path, _variable(each))) for each in value]
        return self.text(value) if isinstance(value, str) else value


def _variable(item: Any) -> str:
    """In a path, what stands for an item of a list: the name of an environment variable."""
    return str(item.get("name", "")) if isinstance(item, Mapping) else ""


def _is_secret(path: tuple[str, ...], value: Any) -> bool:
    """Whether a value of an object is secret by where it stands."""
    if not isinstance(value, str) or not value:
        return False
    match path:
        case (*_, "env" | "httpHeaders", _, "value") | (*_, "args" | "command", ""):
            return True
        case (*_, name, _) if name in _OF_DRIVERS:
            return True
        case (*_, "annotations", name):
            domain = f".{name.rpartition('/')[0]}"
            return not domain.endswith(tuple(f".{each}" for each in _SHOWN_ANNOTATIONS))
        case (*_, "runtimeEnvYAML"):
            return True
    below = [path.index(field) for field in _BELOW_CONFIG if field in path]
    return bool(below) and any(map(is_secret_name, path[min(below) + 1 :]))


def _secrets(value: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """The values of an object that are secret wherever else they stand."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _secrets(each, (*path, str(key)))
    elif isinstance(value, list):
        for each in value:
            yield from _secrets(each, (*path, _variable(each)))
    elif _is_secret(path, value):
        yield from _counts_everywhere(path, value)


def _counts_everywhere(path: tuple[str, ...], value: str) -> Iterator[str]:
    match path:
        case (*_, "env", name, "value"):
            ours = is_own_variable(name) or name.startswith(_OF_RAY)
            if not ours or is_secret_name(name):
                yield value
        case (*_, "httpHeaders", name, "value") | (*_, "volumeAttributes" | "options", name):
            if is_secret_name(name) or _looks_random(value):
                yield value
        case (*_, "args" | "command", ""):
            # A whole argument may be a word such as `train.py`, which tracebacks have.
            yield from (each for each in re.split(r"[\s=]+", value) if _looks_random(each))
        case (*_, "annotations", _):
            yield from (each for each in re.split(r"[\s\"']+", value) if _looks_random(each))
        case _:
            yield value


def _looks_random(text: str) -> bool:
    return (
        len(text) >= 12
        and any(map(str.isdigit, text))
        and any(map(str.isalpha, text))
        and not re.search(r"[.:{}()\[\]]", text)
    )


def _cut(line: str) -> str:
    text = line.rstrip("\r\n")
    if len(text) <= _LONGEST_LINE:
        return line
    more = f" ({len(text) - _LONGEST_LINE} more characters)"
    return text[:_LONGEST_LINE] + more + line[len(text) :]


def _without_values(text: str) -> str:
    """Without what is assigned to telling names."""
    kept: list[str] = []
    end = 0
    for found in _NAMED.finditer(text):
        value = found["value"]
        telling = _is_telling_in_text(found["name"] or found["option"])
        if telling and found.end() >= end and not _NUMBER.fullmatch(value):
            kept += text[end : found.end()], MASK
            end = found.end() + len(value)
    return "".join([*kept, text[end:]])


def _is_telling_in_text(name: str) -> bool:
    """In a text `key`, `pass` and the like mean a secret in the name of a variable alone."""
    if is_telling(name):
        return True
    of_a_variable = name.isupper() and "_" in name
    return is_secret_name(name) and (of_a_variable or name.lower().endswith(_PASSWORDS))
