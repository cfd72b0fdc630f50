"""TrainingDefaults and ClusterTrainingDefaults: what runs get that do not set it themselves.

Their spec is a part of a run's, see `FIELDS`, of which nothing is required, and `maximum`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field

from trainingrun_protocol.wire import Wire

from .base import Model, Number, Whole

DEFAULTS_KIND = "TrainingDefaults"
DEFAULTS_PLURAL = "trainingdefaults"
CLUSTER_DEFAULTS_KIND = f"Cluster{DEFAULTS_KIND}"
CLUSTER_DEFAULTS_PLURAL = f"cluster{DEFAULTS_PLURAL}"
DEFAULTS_NAME = "default"
"""The only name that an object of either kind can have."""

FieldTree = Mapping[str, "FieldTree | None"]
"""A tree of names of fields. None: the field as a whole."""

FIELDS: FieldTree = {
    "image": None,
    "podTemplate": None,
    "storage": dict.fromkeys(("uri", "endpoint", "region", "credentialsSecret", "output")),
    "workers": {"capacity": None},
    "failures": None,
    "scheduling": None,
    "budget": None,
    "activeDeadlineSeconds": None,
    "ttlSecondsAfterFinished": None,
}
"""The fields of a run's spec that have defaults, by their names in YAML."""


class Maximum(Model):
    """The most that a run may ask for. A run that asks for more does not begin."""

    model_config = ConfigDict(extra="ignore")  # the limits of a newer version

    workers: Whole | None = Field(default=None, ge=1, le=1000)
    """Workers of a run: workers.count, of a sweep times sweep.concurrency. Default: any number."""
    accelerators: Whole | None = Field(default=None, ge=0, le=1_000_000)
    """Accelerators of all workers and standby pods of a run. Default: any number."""
    active_deadline_seconds: Whole | None = Field(default=None, ge=1, le=31536000)
    """The longest activeDeadlineSeconds, which a run then needs. Default: runs need none."""
    budget_amount: Number | None = Field(default=None, ge=0, le=1e9)
    """The largest budget.amount, which a run then needs, with action Suspend. Default: runs need
    none."""


class DefaultsSource(Wire):
    """One object that a run has defaults or limits from."""

    kind: str
    """TrainingDefaults, of the run's namespace, or ClusterTrainingDefaults."""
    name: str
    """Its name."""
    resource_version: str
    """Its version when it was read."""
    generation: int = 0
    """How often it had changed by then."""
    fields: list[str] = Field(default_factory=list, max_length=200)
    """The fields of the run's spec that were from it when the run began, such as storage.uri."""
    maximum: Maximum | None = None
    """Its limits."""


class AppliedDefaults(Wire):
    """The defaults of a run, as they were before its first attempt; they stay what they are."""

    sources: list[DefaultsSource] = Field(default_factory=list, max_length=2)
    """The objects that they are from: the namespace's before the cluster's."""
    spec: dict[str, Any] = Field(default_factory=dict)
    """The fields that both set, the namespace's before the cluster's. The run's own come first."""
