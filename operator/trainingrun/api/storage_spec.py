"""spec.storage: the bucket, and the run that this one begins from."""

from typing import ClassVar

from pydantic import Field

from .base import OBJECT_NAME, Model, Rule, Whole, inherited, matching, object_name
from .quantities import Quantity, at_least

BUCKET_PATTERN = (
    r"(s3|gs|az|abfs|abfss)://[^/@?#\s]+|"
    r"abfss?://[a-z0-9$-]+@[a-z0-9]+[.](dfs|blob)[.]core[.]windows[.]net"
)
"""A bucket, or a container and its storage account, without credentials."""
_CLAIM_SCHEME = "pvc://"
CLAIM_PATTERN = rf"{_CLAIM_SCHEME}{OBJECT_NAME}(/[A-Za-z0-9_][A-Za-z0-9._-]*)*"
"""A folder on a PersistentVolumeClaim; no part of it leads out of it."""
FOLDER_PATTERN = rf"({BUCKET_PATTERN})(/[^@?#\s]*)?|{CLAIM_PATTERN}/?|file:///[^@?#\s]*"
"""A folder in a bucket, on a claim or of the pods, without credentials, query or spaces."""


def claim_of(uri: str | None) -> str | None:
    """Name of the PersistentVolumeClaim that a URI names; None: it names none."""
    found = (uri or "").partition(_CLAIM_SCHEME)
    return found[2].partition("/")[0] if found[1] and not found[0] else None


def on_the_same_claim(field: str, storage: str) -> str:
    """In CEL, whether a URI that names a claim names that of `storage`; both are expressions."""
    return (
        f"!{field}.startsWith('{_CLAIM_SCHEME}') || ({storage}.startsWith('{_CLAIM_SCHEME}') && "
        f"{field}.split('/')[2] == {storage}.split('/')[2])"
    )


OTHER_CLAIM = (
    "must be on the claim of storage.uri, which alone the pods have; copy it there, or write the "
    "URI of a bucket"
)


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
            "abfs, abfss, pvc, file), without credentials, query or spaces",
        ),
        matching(
            "run",
            r"[a-z]([-a-z0-9]*[a-z0-9])?",
            "must be the name of a TrainingRun: lower-case letters, digits and hyphens",
        ),
    )


class Output(Model):
    """How much of what ranks and driver print is kept in the run's folder."""

    max_size: Quantity = Field(default="1Gi", json_schema_extra=inherited)
    """Bytes of the run, or of each trial of a sweep; beyond them the oldest lines are deleted.
    Default: 1Gi."""
    max_age_days: Whole | None = Field(default=None, ge=1, le=3650)
    """Days after which lines are deleted, while the run goes on. Default: they stay."""

    rules: ClassVar[tuple[Rule, ...]] = (
        at_least("max_size", "1Mi", "must be a quantity of bytes of at least 1Mi, such as 512Mi"),
    )


class Storage(Model):
    """The bucket in which the run keeps its lease, checkpoints and result."""

    uri: str = Field(max_length=1024)
    """Folder for runs, such as `s3://runs/team-a`; each run takes `<name>-<uid>` below it.
    `pvc://claim/team-a` is a folder on a PersistentVolumeClaim of the run's namespace, which the
    Ray containers of all pods mount: ReadWriteMany, unless all pods are on one node. `file:///…` is
    for a volume that podTemplate mounts in them. Required, here or in TrainingDefaults."""
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

    output: Output = Field(default_factory=Output)
    """How much of what ranks and driver print is kept in the run's folder."""

    rules: ClassVar[tuple[Rule, ...]] = (
        matching(
            "uri",
            FOLDER_PATTERN,
            "must be a folder in a bucket, such as s3://bucket/folder (or gs, az, abfs, abfss, "
            "file), or on a claim, such as pvc://claim/folder, without credentials, query or "
            "spaces; credentials go into a Secret: credentialsSecret",
        ),
        Rule(
            f"!has(self.uri) || !self.uri.startsWith('{_CLAIM_SCHEME}') || "
            "!(has(self.endpoint) || has(self.region) || has(self.credentialsSecret))",
            "is a claim, which has no endpoint, region and credentialsSecret; leave them out",
            lambda storage: (
                storage.claim is None
                or not (storage.endpoint or storage.region or storage.credentials_secret)
            ),
            "uri",
        ),
        Rule(
            "!has(self.uri) || !has(self.restoreFrom) || !has(self.restoreFrom.uri) || "
            + on_the_same_claim("self.restoreFrom.uri", "self.uri"),
            OTHER_CLAIM,
            lambda storage: (
                storage.restore_from is None
                or claim_of(storage.restore_from.uri) in (None, storage.claim)
            ),
            "restore_from.uri",
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

    @property
    def claim(self) -> str | None:
        """Name of the PersistentVolumeClaim; None: it is a bucket, or a folder of the pods."""
        return claim_of(self.uri)
