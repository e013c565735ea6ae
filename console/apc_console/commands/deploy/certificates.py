"""A certificate for a server that has none from an authority: signed with its own key."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from apc_console.errors import InputUnusable

VALID = timedelta(days=825)
"""Browsers take no longer time from certificates that people add themselves."""
_CLOCKS_DIFFER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class CertificatePair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


def make_certificate(names: Sequence[str]) -> CertificatePair:
    """Return a new certificate for these host names and addresses, with a new key (P-256, which all browsers take).

    Raises:
        InputUnusable: a name is neither a host name nor an address.
    """
    key, now = generate_private_key(SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "apc-bus web console")])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(list(map(_name, names))), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return CertificatePair(made.public_bytes(Encoding.PEM), private)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise InputUnusable(f"{text!r} is no host name that a certificate can have") from error


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate as browsers show it: AB:CD:…. Raises InputUnusable: it is no certificate."""
    try:
        digest = x509.load_pem_x509_certificate(certificate).fingerprint(SHA256())
    except ValueError as error:
        raise InputUnusable(f"it is no certificate in PEM: {error}") from error
    return digest.hex(":").upper()
