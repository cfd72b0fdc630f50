"""Pure: (what was observed, now) -> Plan(actions, status, requeue after). One file per policy."""

from .model import Observed, Plan, ReconcileSettings
from .planning import plan

__all__ = ["Observed", "Plan", "ReconcileSettings", "plan"]
