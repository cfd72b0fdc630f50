"""JSON logs: one object per line, with the run that it is about on every one of them."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from pythonjsonlogger.json import JsonFormatter

_about: ContextVar[dict[str, Any] | None] = ContextVar("about", default=None)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Adds fields, such as run, namespace and attempt, to every line logged inside."""
    token = _about.set({**(_about.get() or {}), **fields})
    try:
        yield
    finally:
        _about.reset(token)


class Formatter(JsonFormatter):
    """Time (UTC), level, logger, message, the fields of `about`, extras and traceback."""

    def __init__(self) -> None:
        """Lines as this operator has always written them."""
        names = {"levelname": "level", "name": "logger", "exc_info": "traceback"}
        super().__init__("{levelname}{name}{message}", style="{", rename_fields=names)

    def add_fields(
        self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]
    ) -> None:
        """Time first, then what it is about."""
        time = datetime.fromtimestamp(record.created, UTC)
        log_data["time"] = time.isoformat(timespec="milliseconds")
        super().add_fields(log_data, record, message_dict)
        log_data.update(_about.get() or {})


def configure(level: str) -> None:
    """JSON lines on stderr, for this process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Formatter())
    handler.addFilter(_is_no_retry_of_kopf)
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Their INFO says nothing about runs; aiohttp's access log would print every probe.
    for noisy in ("kopf", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))


def _is_no_retry_of_kopf(record: logging.LogRecord) -> bool:
    """A refusal is logged once by `cluster.watches`, and not at every try."""
    return not (record.name.startswith("kopf.") and str(record.msg).startswith("Request attempt"))
