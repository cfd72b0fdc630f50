"""The columns of `kubectl get trainingruns`: additionalPrinterColumns of the CRD."""

COLUMNS = (
    ("Phase", "string", ".status.phase", "Where the run stands."),
    ("Progress%", "integer", ".status.progress.percent", "Steps done, in percent."),
    ("Step", "integer", ".status.progress.step", "Steps done."),
    ("Attempt", "integer", ".status.attempt", "Number of the current attempt."),
    ("Preemptions", "integer", ".status.disruptions.preemptions", "Workers lost after a notice."),
    ("Goodput%", "integer", ".status.goodput.percent", "Share of time in steps that counted."),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
)
"""Name, type, JSONPath and description of each."""
