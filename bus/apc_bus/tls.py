"""TLS to the broker and to Postgres: where the certificates go, and why a handshake failed, in a sentence."""

import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

ALERT = b"\x15\x03"
"""How an alert record of TLS begins (RFC 8446 section 5.1): what a TLS port answers to plain text."""

_EXPIRED, _NOT_YET_VALID, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64
_CERTIFICATE_FAULTS = {
    _EXPIRED: "its certificate has expired: renew it",
    _NOT_YET_VALID: "its certificate is not valid yet: check the clocks",
    _OTHER_HOST: "its certificate is for another host name: use a name that it holds",
    _OTHER_ADDRESS: "its certificate is for another address: use a name that it holds",
}
"""Verification results of OpenSSL (x509_vfy.h)."""
_SPEAKS_NO_TLS = "it does not speak TLS on this port: use its TLS port, or the plain URL"
_REASONS = {
    "CERTIFICATE_REQUIRED": "it asks for a client certificate: set {cert}",
    "HANDSHAKE_FAILURE": "it refused the handshake: does it ask for a client certificate ({cert})?",
    "CERTIFICATE_EXPIRED": "our client certificate has expired: renew {cert}",
    "UNKNOWN_CA": "it does not know the authority of our client certificate: check {cert}",
    "BAD_CERTIFICATE": "it refused our client certificate: check {cert}",
    "NO_CERTIFICATE": "{ca} or {cert} holds no certificate in PEM",
    "PEM_LIB": "{ca}, {cert} or the key's file is not PEM",
    "KEY_VALUES_MISMATCH": "{cert} and its key do not belong together",
    "WRONG_VERSION_NUMBER": _SPEAKS_NO_TLS,
    "UNKNOWN_PROTOCOL": _SPEAKS_NO_TLS,
    "RECORD_LAYER_FAILURE": _SPEAKS_NO_TLS,
}
"""Words in OpenSSL's reasons; the first that fits."""


class TlsSpoken(ConnectionError):
    """The port answered plain text with TLS."""


def tls_problem(error: BaseException, settings: str) -> str | None:
    """Return what is wrong with TLS, if the error or one of its causes is about that; else None.

    Args:
        settings: prefix of the settings to name, such as APC_AMQP.
    """
    for cause in _causes(error):
        match cause:
            case TlsSpoken():
                return "it speaks TLS on this port: use its TLS URL, or its plain port"
            case ssl.SSLCertVerificationError():
                unknown = f"its certificate is of an authority that is not trusted: check {settings}_CA_FILE"
                return _CERTIFICATE_FAULTS.get(cause.verify_code, unknown)
            case ssl.SSLError():
                said = f"{cause.reason or ''} {cause}".upper().replace(" ", "_")
                known = (sentence for word, sentence in _REASONS.items() if word in said)
                return next(known, f"TLS failed ({cause})").format(
                    ca=f"{settings}_CA_FILE", cert=f"{settings}_CERT_FILE"
                )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield each once: a library that raises a stored error again can close the chain to a ring."""
    causes, seen = [error], {id(error)}
    for one in causes:
        yield one
        before = one.__cause__ or one.__context__
        if before is not None and id(before) not in seen:
            seen.add(id(before))
            causes.append(before)


def with_query(url: str, additions: Mapping[str, Path | str | None]) -> str:
    """Return the URL with these parameters, as far as they have a value and the URL does not name them itself."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    missing = {name: str(value) for name, value in additions.items() if value is not None and name not in query}
    if not missing:
        return url
    # By hand: `urlunsplit` drops the slashes of a URL without a host.
    fragment = f"#{parts.fragment}" if parts.fragment else ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(query | missing)}{fragment}"
