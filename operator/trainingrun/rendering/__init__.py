"""Pure: (run, attempt, settings) -> the manifests of one attempt.

`attempt` is the RayJob of one attempt, `support_objects` what the run needs beside it,
`token_secret` the Secret whose data only the controller has, `contract` what the runtime reads,
`worker_nodes` the part of an attempt's workers that says which nodes they go to, `unreadable` why
KubeRay could not read a RayJob. `names` makes and reads the names and labels of all of them.
"""

from . import names
from .checks import unreadable
from .contracts import contract
from .objects import (
    attempt,
    renewed_token_secret,
    support_objects,
    token_secret,
    worker_nodes,
)
from .platforms import RenderSettings
from .scheduling import Placement

__all__ = [
    "Placement",
    "RenderSettings",
    "attempt",
    "contract",
    "names",
    "renewed_token_secret",
    "support_objects",
    "token_secret",
    "unreadable",
    "worker_nodes",
]
