"""Errors of the bucket, each as one sentence that a user can act on.

The client's own message contains the request with its signature. Only the store's error code and
the HTTP status are taken from it, so that no secret is written to a status or a log.
"""

import errno
import re

from ..error_text import text_of

CA_ENV = "AWS_CA_BUNDLE"
"""Names a file with certificates, as PEM, that are trusted beside those of the system."""


class StorageError(Exception):
    """A request failed; the state of the bucket is unknown."""

    lasting = False
    """See `LastingError`."""
    waited = False
    """Whether the request was retried for as long as the settings allow."""
    mounted = False
    """Whether it is of a mounted folder, which has neither an endpoint nor credentials."""


class AbsentError(StorageError):
    """There is no such object, which is certain."""


class DamagedError(StorageError):
    """An object is not what was committed, which is certain, too."""


class TakenError(StorageError):
    """The store answers that there is such an object, or that another request is under way.

    It proves neither; the second one passes, so the request may be repeated.
    """


class LastingError(StorageError):
    """An error that usually persists until a person corrects its cause."""

    lasting = True


class BucketMissingError(LastingError):
    """The bucket itself does not exist."""


class UnreachableError(StorageError):
    """The endpoint did not answer."""


class CredentialsError(LastingError):
    """The store refuses the credentials, or there are none."""


class DeniedError(LastingError):
    """The credentials do not permit the request."""


class UnusableError(LastingError):
    """The store lacks a feature that is needed, or an object is not as expected."""


class LackingError(UnusableError):
    """The store cannot keep two drivers apart, and will not be able to while a run waits."""


class EndpointError(LastingError):
    """What answers is no object store, or cannot be talked to in this way."""


class NotMountedError(LastingError):
    """The claim is not mounted at its place, so nothing is known of what is on it."""

    mounted = True


class StoreFullError(LastingError):
    """The store has no space left, or the quota is used up."""


class RefusedError(LastingError):
    """The store refuses the request, and would refuse it again."""


class DiskFullError(LastingError):
    """A disk is full; new pods have an empty one."""


_STATUS = r"(?:status code:|HTTP status) (\d{3})"
_CODE = r"<Code>([A-Za-z0-9.]{1,64})</Code>"
_CODE_OF_ONE = r"DeleteObjects request failed for key .*\(code: ([A-Za-z0-9.]{1,64})\)"
"""Of a delete of several objects, to which the store answers 200 and an error for each."""
_NO_OBJECT = {"NoSuchKey", "BlobNotFound"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_UNKNOWN_USER = {
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NoAuthenticationInformation",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClient",
    "UnrecognizedClientException",
    "XAdminUserNotFound",
}
_WRONG_REGION = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
}
_FULL = re.compile(r"QuotaExceeded|StorageFull|DiskFull|InsufficientStorage|InsufficientCapacity")
_SKEWED = {"RequestTimeTooSkewed", "RequestExpired"}
_SOON_OTHERWISE = {"400 RequestTimeout", "400 IncompleteBody"}
"""Answers with a status of 400 to 499 that mean no refusal: what was sent got lost on the way."""
_METADATA_SERVERS = ("169.254.169.254", "169.254.170.", "metadata.google.internal", "/metadata/")


def explain(error: Exception, uri: str, endpoint: str | None) -> StorageError:
    """Translate an error of an object store client: obstore's, or pyarrow's own, with which Ray
    Data and training code read their data.

    Args:
        error: What the client raised.
        uri: The folder that was used, for the sentence.
        endpoint: The endpoint that was used, if not the cloud's own.

    Returns:
        The error to raise instead, `from None`, since the original carries the signed request.
    """
    text, _, cause = text_of(error).partition("\n\nDebug source")
    status = _first(_STATUS, text)
    code = _first(_CODE, text) or _first(_CODE_OF_ONE, text) or _pyarrow_code(text)
    at = f"{uri} at {endpoint}" if endpoint else uri

    # A 404 alone does not say what is missing, only the store's code for a missing object does:
    # a renamed bucket or a proxy's error page must never make a run start from scratch.
    if isinstance(error, FileNotFoundError) and (status is None or code in _NO_OBJECT):
        return AbsentError(f"there is no such object in {at}")
    if _is_full(error, text):
        return DiskFullError(f"there is no space left to write to, at {at}; free some")
    if _FULL.search(code or "") or status == "507":
        return StoreFullError(
            f"the store of {at} is full ({code or f'HTTP {status}'}); free space there or raise "
            "its quota"
        )
    no_tls = _tls(at, text, cause)
    if no_tls is not None:
        return no_tls
    if "Missing AccessKeyId" in text or any(server in text for server in _METADATA_SERVERS):
        return CredentialsError(
            f"no credentials for {at} were found; name a Secret with them in "
            "storage.credentialsSecret, or give the pods a service account that has access"
        )
    if code in _NO_BUCKET or _NO_BUCKET_OF_OBSTORE in text or _NO_BUCKET_OF_PYARROW in text:
        return BucketMissingError(
            f"the bucket of {at} does not exist; create it or correct storage.uri"
        )
    redirected = "redirect without LOCATION" in text or status in ("301", "302", "303", "307")
    if code in _WRONG_REGION or (redirected and not endpoint):
        return UnusableError(f"the bucket of {at} is in another region; set storage.region")
    if redirected:
        return EndpointError(
            f"{at} redirects elsewhere; correct storage.endpoint, or set storage.region to that of "
            "the bucket"
        )
    left_out = _first(_LEFT_OUT, text)
    if left_out is not None:
        return UnusableError(
            f"the store of {at} lists objects without their {left_out}; use another store or a "
            "newer version of this one"
        )
    if status == "405" or _NO_STORES_ANSWER.search(text):
        return no_store(at)
    if code in _SKEWED:
        return RefusedError(
            f"the clock here differs from that of {at} ({code}); set the clock of the node"
        )
    if status == "501" or code == "NotImplemented":
        return UnusableError(
            f"the store of {at} cannot do what a run needs: it answers {_asked(text)} with "
            f"{code or 'HTTP 501'}; use another store"
        )
    if code in _UNKNOWN_USER or status == "401" or type(error).__name__ == "UnauthenticatedError":
        return CredentialsError(
            f"the credentials for {at} were refused ({code or status or 'unauthenticated'}); "
            "correct the Secret that storage.credentialsSecret names"
        )
    if isinstance(error, PermissionError) or status == "403" or code == "AccessDenied":
        return DeniedError(f"access to {at} was denied ({code or status or 'by the file system'})")
    if uri.startswith("file:"):
        return UnusableError(
            f"{uri} cannot be used: {_first(r'([^:]{1,200})$', text.splitlines()[0])}"
        )
    if code == "NetworkConnection" or (
        status is None and ("HTTP error" in text or "timed out" in text or "Connect" in text)
    ):
        return UnreachableError(f"{at} cannot be reached; check storage.endpoint and the network")
    # The address of a request may end with a signature.
    unsigned = re.sub(r"\?\S+", "", text)
    detail = code or (f"HTTP {status}" if status else _first(r"^([^\n]{1,200})", unsigned))
    # Not a 404: a proxy gives it while the store behind it starts.
    if status in ("400", "403", "411", "413", "414", "422") and (
        f"{status} {code}" not in _SOON_OTHERWISE
    ):
        return RefusedError(f"{at} refuses a request: {detail}; see the store's log")
    return StorageError(f"{at} answered with an error: {detail}")


def is_panic(error: BaseException) -> bool:
    """Whether the client has met what it did not expect, of which its code in Rust panics."""
    return type(error).__name__ == "PanicException"  # of a module that cannot be imported


def may_be_anothers_answer(error: Exception) -> bool:
    """Whether what has answered gave no error code, as a store does except to a HEAD request."""
    text = text_of(error)
    if _NO_STORES_ANSWER.search(text):
        return True
    return _first(_STATUS, text) is not None and _first(_CODE, text) is None


def _asked(text: str) -> str:
    """The request that an error of obstore is about, in the words of S3."""
    url = _first(r"Error performing [A-Z]+ (\S+) in ", text) or ""
    if "list-type=" in url or "list request" in text:
        return "a list of objects (ListObjectsV2)"
    if "?delete" in url:
        return "a delete of several objects (DeleteObjects)"
    if "uploads=" in url or "uploadId=" in url:
        return "an upload in parts (CreateMultipartUpload)"
    return f"a {_first(r'Error performing ([A-Z]+) ', text) or 'request'} of an object"


def _tls(at: str, text: str, cause: str) -> StorageError | None:
    """What TLS says, by rustls's words in obstore's `cause`."""
    untrusted = _first(r"InvalidCertificate\(\s*(?:Other\(\s*OtherError\(\s*)?(\w+)", cause)
    if untrusted in ("Expired", "ExpiredContext"):
        return EndpointError(f"the certificate of {at} has expired; renew it")
    if untrusted == "CaUsedAsEndEntity":
        return EndpointError(
            f"the certificate of {at} is that of an authority; give the server one of its own"
        )
    if untrusted and "NotValidForName" in untrusted:
        return EndpointError(
            f"the certificate of {at} is for another host; write that name in storage.endpoint"
        )
    if untrusted:
        return EndpointError(
            f"the certificate of {at} is not trusted ({untrusted}); mount that of its authority, "
            f"and set {CA_ENV} in training.env to the file"
        )
    if "InvalidContentType" in cause:
        return EndpointError(
            f"there is no TLS at {at}; write http:// in storage.endpoint, or the port with TLS"
        )
    if _PLAIN_TO_TLS.search(text):
        return needs_tls(at)
    return None


def no_store(at: str) -> StorageError:
    """Of an endpoint whose answers are those of something else."""
    return EndpointError(
        f"what answers at {at} is no object store, perhaps its console or a login page; correct "
        "storage.endpoint"
    )


def no_name(root: str, what: str) -> ValueError:
    """Of a name that no object can have: a retry would not help."""
    return ValueError(f"no object of {root} can have such a name: {what}; use another one")


def needs_tls(at: str) -> StorageError:
    """Of an http:// endpoint that speaks TLS."""
    return EndpointError(f"there is TLS at {at}; write https:// in storage.endpoint")


def recognize(error: BaseException) -> StorageError | None:
    """What an exception of any code says about storage; None where it is about something else.

    A missing file is about something else: code that opens a wrong name has to be corrected.
    """
    if isinstance(error, StorageError):
        return error
    text = text_of(error)
    if not isinstance(error, Exception) or isinstance(error, FileNotFoundError):
        return None
    if _is_full(error, text):
        first = text.splitlines()[0][:200]
        return DiskFullError(f"a disk is full ({first}); give the pods more ephemeral storage")
    known = type(error).__module__.startswith("obstore") or (
        isinstance(error, OSError) and any(name in text for name in _PYARROW)
    )
    if not known and not _is_botocore_outage(error):
        return None
    bucket = _first(r"[Bb]ucket '([^']{1,100})'", text)
    return explain(error, f"bucket {bucket}" if bucket else "the object store", None)


_NO_BUCKET_OF_OBSTORE = "The specified bucket does not exist"
_NO_BUCKET_OF_PYARROW = "enable the allow_bucket_creation option"
"""Where the store answers 404 before a folder is made, as one that is just starting may do."""
_PYARROW = ("AWS Error", "google::cloud::Status", "Azure Error", _NO_BUCKET_OF_PYARROW)
"""What pyarrow's errors of object stores contain; its exception types are Python's own."""

_NO_STORES_ANSWER = re.compile(r"Got invalid \w+ response")
"""Of an answer with status 200 that is not XML; one of 502 or 503 may be HTML of a proxy."""
_LEFT_OUT = r"Got invalid list response: missing field `(\w+)`"
"""Of a list of objects in XML; HTML is taken for an empty one."""
_PLAIN_TO_TLS = re.compile(r"HTTP request to an HTTPS server|plain HTTP request was sent to HTTPS")
"""What servers in Go, and nginx, answer."""

_SHARED_MEMORY = re.compile(r"(?:/dev)/shm|shared memory|</torch_")
"""A file of /dev/shm, as the processes of a data loader, NCCL and Ray write them."""


def _pyarrow_code(text: str) -> str | None:
    """The store's error code in pyarrow's spelling: NO_SUCH_BUCKET is S3's NoSuchBucket."""
    unknown = _first(r"ExceptionName: ([A-Za-z0-9]{1,64})", text)
    shouted = _first(r"AWS Error ([A-Z_]{1,64})", text)
    if unknown or not shouted or shouted == "UNKNOWN":
        return unknown
    return "".join(part.title() for part in shouted.split("_"))


def _is_full(error: Exception, text: str) -> bool:
    if _SHARED_MEMORY.search(text):
        return False  # it is memory, and its remedy another one
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    # torch.save reports a short write by the place in its own source alone.
    torch_write = "inline_container.cc" in text and "unexpected pos" in text
    return torch_write or "No space left on device" in text


def _is_botocore_outage(error: Exception) -> bool:
    return any(
        kind.__module__ == "botocore.exceptions" and kind.__name__ == "HTTPClientError"
        for kind in type(error).__mro__
    )


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found.group(1) if found else None
