"""Whose requests to the store fail at the moment; pure."""


class StoreTroubles:
    """The error of each process whose requests fail, and since when."""

    def __init__(self) -> None:
        self._errors: dict[str, tuple[str, float]] = {}  # reporter -> (latest error, since)

    def report(self, source: str, error: str | None, now: float) -> None:
        """Requests of `source` fail with this error; None: no longer. `now`: Unix time."""
        if error is None:
            self._errors.pop(source, None)
        else:
            _, since = self._errors.get(source, (error, now))
            self._errors[source] = (error, since)

    def forget_ranks(self) -> None:
        """The ranks have ended; the new ones report their own."""
        for source in [name for name in self._errors if name.startswith("rank ")]:
            del self._errors[source]

    @property
    def oldest(self) -> tuple[str, float] | None:
        """The latest error of whoever waits longest, and since when; None: nobody waits."""
        return min(self._errors.values(), key=lambda found: found[1], default=None)
