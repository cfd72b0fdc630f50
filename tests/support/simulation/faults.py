"""Everything that can happen, in the order in which stories number it."""

from . import cluster_faults as cluster_faults  # registers them
from . import run_faults as run_faults
from .fault_groups import FAULTS as FAULTS
from .fault_groups import GROUPS as GROUPS
from .fault_groups import Fault as Fault
