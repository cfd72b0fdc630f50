"""What people meet, and what to do about it: patterns of errors with advice."""

from .met import MET
from .of_frameworks import FRAMEWORKS
from .remedy import Remedy
from .removed_from_ray import REMOVED

__all__ = ["REMEDIES", "REMOVED", "Remedy"]

REMEDIES = REMOVED + FRAMEWORKS + MET
"""The first row that matches an error counts."""
