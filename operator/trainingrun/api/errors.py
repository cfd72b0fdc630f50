"""The one class of what is told to users."""


class RunError(Exception):
    """What was asked for cannot be done; the text is one sentence for the user."""
