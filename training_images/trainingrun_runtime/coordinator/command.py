"""What the workers do between two steps."""

from enum import IntEnum


class Command(IntEnum):
    """A command to all ranks; where ranks request different ones, the largest applies."""

    NONE = 0
    CHECKPOINT = 1
    """Make a checkpoint and continue."""
    CHECKPOINT_AND_EXIT = 2
    """Make a checkpoint, wait for its commit and end the worker group; a new one follows."""
    SUSPEND = 3
    """The same, and no worker group follows."""
