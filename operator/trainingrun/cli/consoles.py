"""Where the commands print."""

from rich.console import Console


def wide_console() -> Console:
    """Standard output; in a pipe as wide as a line may get, for rich would cut it at 80."""
    console = Console()
    return console if console.is_terminal else Console(width=1000)
