"""The one exception of a local run."""


class LocalError(Exception):
    """A run cannot go on here; the text is one sentence, fit for a user."""
