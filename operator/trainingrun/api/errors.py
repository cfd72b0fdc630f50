"""What is told to users."""


class RunError(Exception):
    """What was asked for cannot be done; the text is one sentence for the user."""


class UnreachableError(RunError):
    """Whoever knows the answer did not give it; a later call may succeed."""


class RunFailedError(RunError):
    """A run that was waited for has failed; the text says why."""
