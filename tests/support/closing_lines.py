"""Lines that tests want to have at the end of pytest's output."""

LINES: list[str] = []


def say(line: str) -> None:
    """Print it once all tests have run."""
    LINES.append(line)
