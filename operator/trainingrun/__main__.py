"""The command line: `trainingrun`, `kubectl trainingrun` and `python -m trainingrun`."""

import signal
import sys


def main() -> None:
    """Run the command that the arguments name."""
    # What is imported takes a second or more: Ctrl-C ends it at once, and without a traceback.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli.errors import writing_stdout
    from .cli.main import app

    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, handler)
    with writing_stdout():
        app(prog_name="trainingrun" if sys.argv[0].endswith("__main__.py") else None)


if __name__ == "__main__":
    main()
