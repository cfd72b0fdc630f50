"""What a run needs beside its attempts stays as rendered, whoever deletes or edits it."""

from .. import rendering
from . import pod_status
from .context import ReconcileContext
from .findings import Findings
from .model import Action, Apply, Manifest, Object, Restore


def keep(context: ReconcileContext) -> Findings:
    """Make again what is missing, and restore what differs: also where KubeRay has moved."""
    if context.observed.support is None:
        return Findings()
    found = {pod_status.name(known): known for known in context.observed.support}
    wanted = rendering.support_objects(context.run, context.render)
    actions = (
        _kept(context, manifest, found.get(manifest["metadata"]["name"])) for manifest in wanted
    )
    return Findings(actions=tuple(action for action in actions if action))


def _kept(context: ReconcileContext, manifest: Manifest, known: Object | None) -> Action | None:
    if known is None or not _is_own(context, known):
        return Apply(manifest)  # which is refused, and said, where another's has its name
    if known.get("spec") != manifest["spec"] and not pod_status.terminating(known):
        return Restore(manifest, pod_status.uid(known))
    return None


def _is_own(context: ReconcileContext, known: Object) -> bool:
    owners = known["metadata"].get("ownerReferences") or ()
    return any(owner.get("uid") == context.run.metadata.uid for owner in owners)
