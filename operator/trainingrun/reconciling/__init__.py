"""Pure: (what was observed, now) -> Plan(actions, status, look again at). One file per policy."""

from .model import Observed, Plan
from .planning import plan
from .settings import ReconcileSettings

__all__ = ["Observed", "Plan", "ReconcileSettings", "plan"]
