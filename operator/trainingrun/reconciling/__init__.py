"""Pure: (what was observed, now) -> Plan(actions, status, requeue after). One file per policy."""

from .model import Observed, Plan
from .planning import plan
from .reconcile_settings import ReconcileSettings

__all__ = ["Observed", "Plan", "ReconcileSettings", "plan"]
