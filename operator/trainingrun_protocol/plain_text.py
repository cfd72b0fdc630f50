"""Text for a terminal and for a page: untrusted text made safe to show, and sizes.

Messages of a run come from training code, from the API server and from whoever may write a status.
Control sequences (colors, titles, the clipboard, the cursor) and characters that cannot be seen,
such as those that change the direction of writing, are removed.
"""

import re
import unicodedata

_SEQUENCE = re.compile(
    r"\x1b[\]PX^_][^\x07\x1b\x9c\n\r]*(?:\x07|\x1b\\|\x9c)"  # a title, a link, the clipboard
    r"|\x1b\[[0-?]*[ -/]*[@-~]?|\x9b[\d;]+m"  # colors and the cursor
    r"|\x1b[ -/]*[0-~]?"
)
"""Within a line. Of a string without an end its beginning alone, and so of the controls of one
character, from U+0080 on: such a character is mostly a quotation mark that was read as Latin-1, and
without it no terminal takes what follows for anything but text.
"""
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode's controls, formatting such as the direction of writing, and line separators."""


def plain(value: object) -> str:
    """On one line, without control sequences."""
    text = _SEQUENCE.sub("", str(value))
    return "".join(_visible(character) for character in " ".join(text.split()))


def plain_lines(text: str) -> str:
    """The same for a log: its lines, tabs and carriage returns stay."""
    return "".join(
        character if character in "\n\r\t" else _visible(character)
        for character in _SEQUENCE.sub("", text)
    )


def _visible(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    return "" if unicodedata.category(character) in _INVISIBLE else character


def size(number_of_bytes: float) -> str:
    """Bytes, in a unit that fits."""
    for unit in ("B", "kB", "MB", "GB"):
        if number_of_bytes < 1000:
            return f"{number_of_bytes:.{0 if unit == 'B' else 1}f} {unit}"
        number_of_bytes /= 1000
    return f"{number_of_bytes:.1f} TB"


def money_text(amount: float) -> str:
    """An amount, without its currency. Of less than 1 it has four digits: a short run on a cheap
    node costs something, too.
    """
    return f"{amount:,.2f}" if amount >= 1 or not amount else f"{amount:.4g}"
