"""An error in one sentence, with what to do about it where that is known; pure."""

from collections.abc import Iterator

from ..error_text import first_line, text_of
from .remedy_table import REMEDIES, Remedy

_RUNTIME = f"{__name__.partition('.')[0]}."
_SHOWN = 200
"""Characters of an error's own text before an advice: an attempt's message has 500."""
_LONGEST = 450
"""Characters of one without an advice."""
_SEARCHED = 20_000
"""Characters of an error's text that are searched: a remote error holds a whole traceback."""
_CAUSES = 5
"""How far back the causes of an error are searched."""


def find(error: BaseException) -> Remedy | None:
    """What to do about an error, or about what caused it; None: it is not in the table."""
    known = _notes(error)
    # The sentence of an error of the runtime itself says what to do.
    found = texts(error) if not type(error).__module__.startswith(_RUNTIME) else []
    for remedy in REMEDIES.values():
        if remedy.advice in known or any(map(remedy.matches, found)):
            return remedy
    return None


def note(error: BaseException) -> None:
    """Add to an error what to do about it: its causes are lost when Ray sends it on."""
    remedy = find(error)
    if remedy is not None and remedy.advice not in _notes(error):
        error.add_note(remedy.advice)


def _notes(error: BaseException) -> list[str]:
    return [str(each) for each in getattr(error, "__notes__", ())]


def explained(error: BaseException, where: str = "") -> str:
    """The first line of an error's text, where it was raised, and what to do where it is known."""
    remedy, line = find(error), first_line(error)
    most = (_LONGEST if remedy is None else _SHOWN) - len(where)
    shown = line if len(line) <= most else f"{line[: most - 1]}…"
    if remedy is None:
        return f"{shown}{where}"
    return f"{shown.rstrip('.')}{where}; {remedy.advice}"


def advised(sentence: str) -> bool:
    """Whether it ends with what to do, as that of `explained` does where that is known."""
    return any(sentence.endswith(remedy.advice) for remedy in REMEDIES.values())


def texts(error: BaseException) -> list[str]:
    """Type and text of an error, and of those that caused it."""
    return [f"{type(one).__name__}: {text_of(one)[:_SEARCHED]}" for one in _with_causes(error)]


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    for _ in range(_CAUSES):
        if following is None:
            return
        yield following
        following = following.__cause__ or (
            None if following.__suppress_context__ else following.__context__
        )
