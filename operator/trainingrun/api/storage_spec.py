"""spec.storage and spec.checkpoints: where checkpoints are, when they are made, which are kept."""

from typing import ClassVar, Literal

from pydantic import Field

from .base import Model, Rule, matching
from .spec_fields import NumberOrAuto, Whole, object_name

BUCKET_PATTERN = (
    r"(s3|gs|az|abfs|abfss)://[^/@?#\s]+|"
    r"abfss?://[a-z0-9$-]+@[a-z0-9]+[.](dfs|blob)[.]core[.]windows[.]net"
)
"""A bucket, or a container and its storage account, without credentials."""
FOLDER_PATTERN = rf"({BUCKET_PATTERN})(/[^@?#\s]*)?|file:///[^@?#\s]*"
"""A folder in it, without credentials, query or spaces."""
LONGEST_INTERVAL_S = 86400
"""Most seconds between two periodic checkpoints."""


class RestoreFrom(Model):
    """Another run, from whose checkpoint this one begins."""

    uri: str | None = Field(default=None, max_length=1024)
    """Folder of that run, such as `s3://runs/team-a/digits-1a2b3c4d`, also of a run of another
    cluster. Exactly one of uri and run is set."""
    run: str | None = Field(default=None, max_length=41)
    """Name of a TrainingRun in the same namespace. Its folder is found when this run begins, and
    kept in status.restoredFrom."""
    step: Whole | None = Field(default=None, ge=0, le=9007199254740991)
    """Step of the checkpoint. Default: the newest intact one."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.uri) != has(self.run)",
            "set exactly one of uri (a run's folder in the bucket) and run (the name of a "
            "TrainingRun in this namespace)",
            lambda source: (source.uri is None) != (source.run is None),
        ),
        matching(
            "uri",
            FOLDER_PATTERN,
            "must be a run's own folder, such as s3://bucket/folder/digits-1a2b3c4d (or gs, az, "
            "abfs, abfss, file), without credentials, query or spaces",
        ),
        matching(
            "run",
            r"[a-z]([-a-z0-9]*[a-z0-9])?",
            "must be the name of a TrainingRun: lower-case letters, digits and hyphens",
        ),
    )


class Storage(Model):
    """The bucket in which the run keeps its lease, checkpoints and result."""

    uri: str = Field(max_length=1024)
    """Folder for runs, such as `s3://runs/team-a`; each run takes `<name>-<uid>` below it."""
    endpoint: str | None = Field(default=None, max_length=1024)
    """URL of an S3-compatible service. Default: the cloud's own."""
    region: str | None = Field(default=None, max_length=63)
    """Region of the bucket. Default: the client's own rules."""
    credentials_secret: str | None = Field(default=None, max_length=253)
    """Secret, in the run's namespace, whose keys (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)
    become environment variables. Default: none, the pods' service account is used."""
    restore_from: RestoreFrom | None = None
    """Another run, from whose checkpoint this one begins: model, optimizer, step and epoch continue
    as in a resumed run. It counts while this run has no intact checkpoint of its own. That run's
    folder is only read, with this run's endpoint, region and credentials. Default: training begins
    at step 0."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "uri",
            FOLDER_PATTERN,
            "must be a folder in a bucket, such as s3://bucket/folder (or gs, az, abfs, abfss, "
            "file), without credentials, query or spaces; credentials go into a Secret: "
            "credentialsSecret",
        ),
        matching(
            "endpoint",
            r"https?://[^/@?#\s]+(/[^@?#\s]*)?",
            "must be the http or https URL of an S3-compatible service, without credentials or "
            "query, such as https://minio.example.com:9000",
        ),
        matching("region", r"[A-Za-z0-9-]+", "must be the name of a region, such as eu-west-1"),
        object_name("credentials_secret", "Secret in the run's namespace"),
    )


class BestCheckpoint(Model):
    """Which checkpoint is the best one."""

    metric: str = Field(min_length=1, max_length=253)
    """Name of a reported metric. A checkpoint has the metrics of its step, those of an evaluation
    after it too; one that has not this metric, as a finite number, is never the best."""
    order: Literal["min", "max"] = "max"
    """Whether smaller or larger is better."""


class Checkpoints(Model):
    """When checkpoints are made and which are kept."""

    keep: Whole = Field(default=2, ge=2, le=1000)
    """Newest checkpoints kept. At least 2: the newest may be altered or lost."""
    best: BestCheckpoint | None = None
    """Also keep the best checkpoint by this metric. Default: newest only."""
    keep_best: Whole | None = Field(default=None, ge=1, le=1000)
    """Best checkpoints kept beside the newest ones, by the metric of best. Ray's
    CheckpointConfig(num_to_keep=3, checkpoint_score_attribute=…) means 3 here. Default: 1."""
    every_seconds: NumberOrAuto | None = None
    """Seconds of training between the session's periodic checkpoints, 1 to 86400. auto: 10 to 3600,
    from what a checkpoint costs and how often this run is lost. Default: 300; where everySteps is
    set, none by time, except at the end of a loop or an epoch."""
    every_steps: Whole | None = Field(default=None, ge=1, le=1000000000)
    """The session makes a checkpoint at each multiple of so many steps; later, while the one before
    is still being uploaded. With everySeconds as well, also where that is due. Default: none."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.keepBest) || has(self.best)",
            "needs best, which names the metric: write best: {metric: accuracy}",
            lambda checkpoints: checkpoints.keep_best is None or checkpoints.best is not None,
            "keep_best",
        ),
        Rule(
            "!has(self.everySeconds) || (type(self.everySeconds) == int ? "
            f"self.everySeconds >= 1 && self.everySeconds <= {LONGEST_INTERVAL_S} : "
            "self.everySeconds == 'auto')",
            f"must be a number of seconds from 1 to {LONGEST_INTERVAL_S}, or auto",
            lambda checkpoints: (
                checkpoints.every_seconds in (None, "auto")
                or (
                    isinstance(checkpoints.every_seconds, int)
                    and 1 <= checkpoints.every_seconds <= LONGEST_INTERVAL_S
                )
            ),
            "every_seconds",
        ),
    )
