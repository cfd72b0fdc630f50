"""What went wrong with the bucket, in one sentence that a user can act on.

Object stores answer in XML, JSON or not at all, and the client's own message repeats the request
with its signature. Only the store's error code and the HTTP status are taken from it, so nothing
secret gets into a status or a log.
"""

import re


class StorageError(Exception):
    """The bucket did not do what was asked; its state is unknown."""


class AbsentError(StorageError):
    """There is no such object; the one answer here that is certain."""


class BucketMissingError(StorageError):
    """The bucket itself does not exist."""


class UnreachableError(StorageError):
    """Nobody answered at the endpoint."""


class CredentialsError(StorageError):
    """The store does not know us, or there are no credentials at all."""


class DeniedError(StorageError):
    """The store knows us and says no."""


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
    "UnrecognizedClientException",
    "XAdminUserNotFound",
}
_WRONG_REGION = {"AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
_METADATA_SERVERS = ("169.254.169.254", "169.254.170.", "metadata.google.internal", "/metadata/")


def explain(error: Exception, uri: str, endpoint: str | None) -> StorageError:
    """Translate an error of the object store client.

    Args:
        error: What the client raised.
        uri: The folder that was used, for the sentence.
        endpoint: The endpoint that was used, if not the cloud's own.

    Returns:
        The error to raise instead, `from None`, since the original carries the signed request.
    """
    text = str(error).partition("\n\nDebug source")[0]
    status = _first(r"status code: (\d{3})", text)
    code = _first(r"<Code>([A-Za-z0-9]{1,64})</Code>", text)
    at = f"{uri} at {endpoint}" if endpoint else uri

    # A 404 alone does not say what is missing. Only the store's own word for "no such object" does:
    # a renamed bucket or a proxy's error page must never make a run start from scratch.
    if isinstance(error, FileNotFoundError) and (status is None or code in _NO_OBJECT):
        return AbsentError(f"there is no such object in {at}")
    if "Missing AccessKeyId" in text or any(server in text for server in _METADATA_SERVERS):
        return CredentialsError(
            f"no credentials for {at} were found; name a Secret with them in "
            "storage.credentialsSecret, or give the pods a service account that has access"
        )
    if code in _NO_BUCKET or "The specified bucket does not exist" in text:
        return BucketMissingError(
            f"the bucket of {at} does not exist; create it or correct storage.uri"
        )
    if code in _WRONG_REGION or status in ("301", "307"):
        return StorageError(f"the bucket of {at} is in another region; set storage.region")
    if code in _UNKNOWN_USER or status == "401" or type(error).__name__ == "UnauthenticatedError":
        return CredentialsError(
            f"the credentials for {at} were refused ({code or status or 'unauthenticated'}); "
            "correct the Secret that storage.credentialsSecret names"
        )
    if isinstance(error, PermissionError) or status == "403" or code == "AccessDenied":
        return DeniedError(f"access to {at} was denied ({code or status or 'by the file system'})")
    if uri.startswith("file:"):
        return StorageError(
            f"{uri} cannot be used: {_first(r'([^:]{1,200})$', text.splitlines()[0])}"
        )
    if status is None and ("HTTP error" in text or "timed out" in text or "Connect" in text):
        return UnreachableError(f"{at} cannot be reached; check storage.endpoint and the network")
    detail = code or (f"HTTP {status}" if status else _first(r"^([^\n]{1,200})", text))
    return StorageError(f"{at} answered with an error: {detail}")


def _first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text)
    return found.group(1) if found else None
