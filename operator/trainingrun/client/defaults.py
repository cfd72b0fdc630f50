"""What a run will have from the TrainingDefaults of a cluster, before it is there."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..api.defaults import CLUSTER_DEFAULTS_KIND, DEFAULTS_KIND, DEFAULTS_NAME
from ..api.v1alpha1 import API_VERSION
from ..cluster.resources import path
from ..rendering.defaults import Object, names_storage
from . import object_names
from .errors import ForbiddenError, NotFoundError, NotServedError

if TYPE_CHECKING:
    from .kube import Kube

Lookup = Callable[[Mapping[str, Any]], Sequence[Object]]
"""The objects that count for a manifest: that of its namespace before that of the cluster."""


def no_defaults(manifest: Mapping[str, Any]) -> Sequence[Object]:
    """Where no cluster is asked."""
    return ()


def of_namespace(kube: "Kube", namespace: str, say: Callable[[str], None]) -> list[Object]:
    """The objects that count in a namespace.

    Args:
        kube: The cluster.
        namespace: The namespace.
        say: Takes a sentence about one that may not be read.

    Raises:
        RunError: The cluster does not answer, or no namespace can have the name.
    """
    found, namespace = list[Object](), object_names.of_namespace(namespace)
    for kind, within in ((DEFAULTS_KIND, namespace), (CLUSTER_DEFAULTS_KIND, None)):
        try:
            where = path(API_VERSION, kind, within, DEFAULTS_NAME)
            found.append(kube.get(where, has="metadata"))
        except (NotFoundError, NotServedError):
            continue
        except ForbiddenError as error:
            say(f"what {kind} {DEFAULTS_NAME} sets is not known: {error}")
    return found


def of_cluster(kube: "Kube", say: Callable[[str], None]) -> Lookup:
    """Those of the namespace that a manifest names, or else of the client's."""

    def lookup(manifest: Mapping[str, Any]) -> Sequence[Object]:
        metadata = manifest.get("metadata")
        named = metadata.get("namespace") if isinstance(metadata, Mapping) else None
        namespace = named if isinstance(named, str) and named else kube.namespace
        return of_namespace(kube, namespace, say)

    return lookup


def where_storage_is_missing(kube: Callable[[], "Kube"], say: Callable[[str], None]) -> Lookup:
    """For who needs to know the bucket alone: the cluster is asked where a run names none."""

    def lookup(manifest: Mapping[str, Any]) -> Sequence[Object]:
        return () if names_storage(manifest) else of_cluster(kube(), say)(manifest)

    return lookup
