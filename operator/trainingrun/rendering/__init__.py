"""Pure: (run, attempt, settings) -> the manifests of one attempt.

`attempt` is the RayJob of one attempt, `support_objects` what the run needs beside it,
`token_secret` the Secret whose data only the controller has, `contract` what the runtime reads.
`names` makes and reads the names and labels of all of them.
"""

from . import names
from .contracts import contract
from .objects import attempt, renewed_token_secret, support_objects, token_secret
from .platforms import RenderSettings

__all__ = [
    "RenderSettings",
    "attempt",
    "contract",
    "names",
    "renewed_token_secret",
    "support_objects",
    "token_secret",
]
