"""What counts as a secret, by its name and by its form: in what is printed or handed on."""

import base64
import json
import re
from urllib.parse import quote

SHORTEST = 6
"""Characters; a shorter value is an ordinary word, and no secret that protects anything."""
USERINFO = (
    r"(?<=\w://)(?:"
    # A password may have `@` and slashes; a port is none.
    r"[^/\s:@\"'<>]{0,200}:(?!\d{1,5}[/?#])[^\s\"'<>]{1,500}"
    r"|[^/\s\"'<>]{1,500}"
    r")(?=@)"
)
"""A user and a password in a URL, up to the last `@` of the word."""
LONGEST_USERINFO = 710
"""Characters of what `USERINFO` finds, with what it looks at."""

_WORDS = re.compile(r"[a-z]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TELLING = re.compile(
    r"passw(?:or)?d|passphrase|passcode|secret|credential|token(?!s|iz)"
    r"|(?:api|access|private|account|shared|sign(?:ing)?|encryption|master|auth|license|storage)"
    r"_?key(?!board|point|_?id$)"
    r"|conn(?:ection)?_?str|authorization|cookie|webhook|signature"
)
_TELLING_WORDS = frozenset(
    "auth bearer cred creds dsn jwt key keys pass pat pwd sas tokens".split()  # noqa: SIM905
)


def is_telling(name: str) -> bool:
    """Whether a name says by itself that what it stands for is secret, such as `HFTOKEN`.

    Also in running text, where `key: value` and `tokens: 7` say nothing of that kind.
    """
    return bool(_TELLING.search(_snake(name)))


def is_secret_name(name: str) -> bool:
    """Whether the value of a variable or a setting of this name is secret, such as `MYSQL_PWD`.

    AWS_ACCESS_KEY_ID is none: it has a name, maybe a plain word.
    """
    snake = _snake(name)
    if name == "PWD" or snake.endswith(("key_id", "keyid")):
        return False
    return is_telling(name) or not _TELLING_WORDS.isdisjoint(_WORDS.findall(snake))


def forms(secret: str) -> set[str]:
    """A secret as it stands in URLs, in JSON and in Kubernetes' Secrets, too."""
    content = as_bytes(secret)
    return {
        secret,
        quote(content, safe=""),
        json.dumps(secret)[1:-1],
        base64.b64encode(content).decode().rstrip("="),
    }


def as_bytes(text: str) -> bytes:
    """As a process prints it; a variable's value may have bytes that are no UTF-8."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:  # as JSON can hold it
        return text.encode(errors="replace")


def parts(secret: str) -> list[str]:
    """A secret of several lines, such as a private key, is printed line by line."""
    return [line for each in secret.splitlines() if len(line := each.strip()) >= SHORTEST]


def _snake(name: str) -> str:
    return _CAMEL.sub("_", name).replace("-", "_").lower()
