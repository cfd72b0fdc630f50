"""The operator's credentials: a pod's service account, else kubeconfig.

The official client is left out: importing any part of it takes 20 MB, a quarter of what the
operator takes before it has read anything.
"""

import os
import ssl
from pathlib import Path

import kopf
import yaml

from ..cluster.credentials import Credentials

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet keeps a pod's token, and the certificate of the API server's authority."""


class NoCredentials(Exception):
    """No API server is known, or not as whom to speak to it; the text says what to do."""


def load_credentials() -> Credentials:
    """Those of this process.

    Raises:
        NoCredentials: there are none, or they cannot be used.
    """
    try:
        return _of_service_account() or _of_kubeconfig()
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise NoCredentials(
            f"the cluster's credentials cannot be read ({type(error).__name__}: {error}); "
            "correct KUBECONFIG"
        ) from None


def _of_service_account() -> Credentials | None:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    token_file, authority = SERVICE_ACCOUNT / "token", SERVICE_ACCOUNT / "ca.crt"
    if not (host and port and token_file.exists() and authority.exists()):
        return None
    host = f"[{host}]" if ":" in host else host
    tls = ssl.create_default_context(cafile=authority)
    server = f"https://{host}:{port}"
    return Credentials(server, tls, token_file=token_file, authority=authority)


def _of_kubeconfig() -> Credentials:
    """Of its current context."""
    try:
        found = kopf.login_with_kubeconfig(settings=kopf.OperatorSettings())
    except yaml.YAMLError:  # whose text has a line of the file, perhaps the token's
        raise NoCredentials("the kubeconfig is not YAML; correct it, or set KUBECONFIG") from None
    except kopf.LoginError as error:
        raise NoCredentials(f"no cluster is configured ({error}); set KUBECONFIG") from None
    if found is None or not found.server:
        raise NoCredentials(
            "no cluster is configured; run in a pod with a service account, or set KUBECONFIG"
        )
    headers = found.as_http_headers()
    if not headers and not (found.certificate_path or found.certificate_data):
        raise NoCredentials(
            "the user of kubeconfig's current context has no token, password or client "
            "certificate, and the operator runs no credential plugin; put a token there, as "
            "`kubectl create token` makes one"
        )
    return Credentials(found.server.rstrip("/"), found.as_ssl_context(), headers)
