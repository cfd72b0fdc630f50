"""A private certificate authority, and a certificate of it for servers on this machine."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Tls(NamedTuple):
    """Files, as PEM."""

    authority: Path
    """The authority's certificate, which clients have to trust."""
    certificate: Path
    """The server's own, for localhost and 127.0.0.1."""
    key: Path
    """Its private key."""


def certificates(folder: Path, *, host: str = "localhost", expired: bool = False) -> Tls:
    """Make an authority and a server's certificate; `expired`: that of yesterday."""
    files = Tls(folder / "authority.pem", folder / "server.pem", folder / "server.key")
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority of ours")])
    now = datetime.now(UTC)

    def begun(name: x509.Name) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * DAY)
        )

    authority = (
        begun(issuer)
        .not_valid_after(now + DAY)
        .public_key(authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(authority_key, SHA256())
    )
    alternatives = [x509.DNSName(host)]
    local = [x509.IPAddress(ip_address("127.0.0.1"))] if host == "localhost" else []
    certificate = (
        begun(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)]))
        .not_valid_after(now - DAY if expired else now + DAY)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName([*alternatives, *local]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(authority_key, SHA256())
    )
    files.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    files.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files
