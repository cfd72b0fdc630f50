"""spec.notify: who is told what happens to a run."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, Rule, matching, object_name

NotificationEvent = Literal["Failed", "Hang", "Preempted", "Succeeded", "BudgetWarning"]
"""What a receiver can be told of."""
MOST_RECEIVERS = 8
"""Entries of spec.notify."""


class SecretKey(Model):
    """A key of a Secret in the run's namespace."""

    name: str = Field(max_length=253)
    """Name of the Secret: trainingrun-notifications, or another one that the platform lets the
    operator read."""
    key: str = Field(max_length=253)
    """The key, such as url."""

    rules: ClassVar[tuple[Rule, ...]] = (
        object_name("name", "Secret"),
        matching(
            "key",
            r"[-._a-zA-Z0-9]+",
            "must be a key of a Secret: letters, digits, hyphens, underscores and dots",
        ),
    )


class Webhook(Model):
    """Where notifications are sent."""

    secret_ref: SecretKey
    """The Secret's key that holds the address, an https URL of a host that the platform allows. It
    is read when a notification is sent, and shown nowhere."""


class Receiver(Model):
    """A receiver of notifications; see docs/notifications.md."""

    # Not `on`, which is the key `true` to YAML 1.1 and so to kubectl.
    events: list[NotificationEvent] = Field(min_length=1, max_length=8)
    """What it is told of. Failed, Succeeded: the run has ended so. Hang: the training stands still.
    Preempted: a loss of infrastructure, which counts against failures.maxPreemptions.
    BudgetWarning: the run has cost nine tenths of budget.amount, and again all of it."""
    webhook: Webhook
    """Where notifications are sent."""
    format: Literal["CloudEvents", "Slack"] = "CloudEvents"
    """CloudEvents: version 1.0 in JSON, structured mode. Slack: a text, as incoming webhooks of
    Slack and of what is compatible with it take."""
