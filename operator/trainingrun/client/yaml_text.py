"""YAML as kubectl reads it, and as it is printed for kubectl.

The grammar is YAML 1.1's, as in kubectl. What a plain scalar means is neither that of YAML 1.1, to
which `3e-4` is a text and `12:30:00` a number, nor that of 1.2, to which `yes` is a text and `0755`
a decimal number. kubectl turns YAML into JSON, in which `1.0` and `1` are one number: so a config
has the same values on this machine and on a cluster. Unlike kubectl, a key that is set twice is
refused: all but one of the two values would be lost.
"""

import base64
import contextlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import yaml

MOST_VALUES = 200_000
"""In one document; aliases of aliases make billions of a few lines."""

_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE"), True),
    **dict.fromkeys(("on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE"), False),
    **dict.fromkeys(("off", "Off", "OFF"), False),
}
_INTEGER = re.compile(
    r"(?P<sign>[-+]?)(0[bB](?P<b>[01]+)|0[oO]?(?P<o>[0-7]+)|0[xX](?P<x>[0-9a-fA-F]+)"
    r"|(?P<d>0|[1-9][0-9]*))"
)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_BETWEEN = re.compile(r"(?<=[0-9])_(?=[0-9])")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TAG = "tag:yaml.org,2002:"
_PLAIN = "plain"
"""In place of the tag of a plain scalar that has none."""
_RESOLVED_TAGS = frozenset(
    {_PLAIN, *(f"{_TAG}{kind}" for kind in ("bool", "float", "int", "null"))}
)


class NotYamlError(ValueError):
    """A text that kubectl would not read either, or a key that is set twice.

    Attributes:
        line: Line of the text, from 1; None: not known.
    """

    def __init__(self, sentence: str, line: int | None = None):
        super().__init__(sentence)
        self.line = line


@dataclass(frozen=True)
class Document:
    """One document of a text."""

    value: Any
    """As JSON has it."""
    node: yaml.Node

    def below(self, key: str, index: int) -> "Document":
        """An item of a list of this document."""
        items = next((node for name, node in self.node.value if name.value == key), None)
        node = items.value[index] if isinstance(items, yaml.SequenceNode) else self.node
        return Document(self.value[key][index], node)

    def line(self, path: Sequence[str | int]) -> int:
        """Line of the text, from 1, at which a field stands, or the nearest one above it."""
        node, line = self.node, self.node.start_mark.line
        for part in path:
            if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                if part >= len(node.value):
                    break
                node = node.value[part]
                line = node.start_mark.line
            elif isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == part), None)
                if pair is None:
                    break
                line, node = pair[0].start_mark.line, pair[1]
        return line + 1


def documents(text: str) -> Iterator[Document]:
    """The documents of a text, without the empty ones.

    Raises:
        NotYamlError: The text cannot be read.
    """
    try:
        yield from _documents(text)
    except NotYamlError as error:
        if "{{" not in text:
            raise
        rendered = "it has {{ … }}: render the template first, as `helm template` does"
        raise NotYamlError(f"{error}; {rendered}", error.line) from None


def _documents(text: str) -> Iterator[Document]:
    if _is_json(text):
        text = text.replace("\t", " ")  # between the values alone; YAML takes no tabs there
    try:
        for node in yaml.compose_all(text, Loader=_Loader):
            if (value := _Reader().value(node)) is not None:
                yield Document(value, node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise NotYamlError(f"is not YAML: {error.problem}", line) from None
    except yaml.YAMLError as error:
        raise NotYamlError(f"is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise NotYamlError("is nested too deeply to be read; use fewer levels") from None


def value(text: str) -> Any:
    """What a text of one value means; an empty one is null.

    Raises:
        NotYamlError: It cannot be read, or is more than one document.
    """
    found = [document.value for document in documents(text)]
    if len(found) > 1:
        raise NotYamlError(f"holds {len(found)} documents; write one value")
    return found[0] if found else None


def dump(*documents: Any) -> str:
    """JSON data as YAML that kubectl reads as the same data."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False)


class _Loader(yaml.BaseLoader):
    """Composes nodes, and leaves to us what plain scalars mean."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _PLAIN
        return super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that kubectl would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    try:
        plain = _resolved(text) == text
    except NotYamlError:
        plain = False
    return dumper.represent_scalar(f"{_TAG}str", text, style=None if plain else "'")


_Dumper.add_representer(str, _represent_text)


class _Reader:
    """Makes values of nodes."""

    def __init__(self) -> None:
        self._count = 0
        self._open: set[int] = set()

    def value(self, node: yaml.Node) -> Any:
        self._count += 1
        if self._count > MOST_VALUES:
            raise _wrong(f"holds more than {MOST_VALUES} values; use fewer aliases", node)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if id(node) in self._open:
            raise _wrong("holds itself by an alias; write its values out", node)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.value(item) for item in node.value]
            return self._mapping(node)
        finally:
            self._open.remove(id(node))

    def _mapping(self, node: yaml.Node) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, item in node.value:
            if key.value == "<<" and key.tag == _PLAIN:
                for merged in self._merged(item):
                    found.update(merged)
                continue
            name = _key(key)
            if name in lines:
                raise _wrong(
                    f"{name} is set twice, also in line {lines[name]}; leave one of them out", key
                )
            lines[name] = key.start_mark.line + 1
            found[name] = self.value(item)
        return found

    def _merged(self, node: yaml.Node) -> list[dict[str, Any]]:
        """The mappings of a merge key, the one that wins last."""
        value = self.value(node)
        mappings = value[::-1] if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in mappings):
            raise _wrong("<< merges mappings alone; write one, or a list of them", node)
        return mappings


def _scalar(node: yaml.ScalarNode) -> Any:
    # In JSON a character beyond 16 bits is two escapes.
    text = node.value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    try:
        if node.tag in _RESOLVED_TAGS:
            return _resolved(text)
        if node.tag == f"{_TAG}binary":
            return base64.b64decode(text).decode(errors="replace")
    except ValueError as error:
        raise _wrong(str(error), node) from None
    return text


def _resolved(text: str) -> Any:
    """What a plain scalar means.

    Raises:
        NotYamlError: A number that JSON does not have.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _NO_NUMBER.fullmatch(text):
        raise NotYamlError(f"{text} is a number that JSON does not have; quote it to make it text")
    if not text.startswith(tuple("+-.0123456789")):
        return text
    digits = _BETWEEN.sub("", text) if text.startswith(".") else text.replace("_", "")
    if match := _INTEGER.fullmatch(digits):
        base = next(base for base in "boxd" if match[base])
        with contextlib.suppress(ValueError):  # of more digits than Python reads
            whole = int(match["sign"] + match[base], {"b": 2, "o": 8, "x": 16, "d": 10}[base])
            if -(2**63) <= whole < (2**63 if match["sign"] else 2**64):
                return _as_json(whole)
    if _FLOAT.fullmatch(digits) and math.isfinite(number := float(digits)):
        return _as_json(number)
    return text


def _as_json(number: float) -> float:
    """A number as it is after it was JSON, which Go has written and Python reads."""
    if isinstance(number, int) and -(2**63) <= number < 2**63:
        return number
    shortest = Decimal(repr(float(number)))
    whole = shortest == shortest.to_integral_value() and abs(shortest) < 10**21
    return int(shortest) if whole else float(number)


def _key(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or (key := _scalar(node)) is None:
        raise _wrong("a key is no text; quote it", node)
    return key if isinstance(key, str) else json.dumps(key)


def _is_json(text: str) -> bool:
    try:
        return text.lstrip().startswith("{") and json.loads(text) is not None
    except (ValueError, RecursionError):
        return False


def _wrong(sentence: str, node: yaml.Node) -> NotYamlError:
    return NotYamlError(sentence, node.start_mark.line + 1)
