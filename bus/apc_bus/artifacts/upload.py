"""Storing an artifact through the service that alone may write the store: `PUT /sha256/<64 hex digits>`."""

import base64
import http.client
import io
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from apc_bus.errors import ArtifactError, ArtifactServiceAway

_TIMEOUT_S = 30.0
"""For every answer, and for every part that is sent."""
_TAKEN = (200, 201)
_LATER = (429, 502, 503, 504)
"""The service, or what it asks who uploads, is away or busy for now."""
_LONGEST_ANSWER = 1000


Login = tuple[str, str]
"""User and password: the agent's own at the broker."""


def upload(service: str, artifact_hash: str, data: bytes | Path, login: Login | None = None) -> None:
    """Send bytes to the service at a URL and return when it has them safe; blocks.

    Raises:
        ArtifactServiceAway: the service does not answer, or says that it cannot take them now.
        ArtifactError: it refused them.
        OSError: a file cannot be read.
    """
    digits = artifact_hash.removeprefix("sha256:")
    if isinstance(data, bytes):
        _put(service, digits, io.BytesIO(data), len(data), login)
        return
    with data.open("rb") as file:
        _put(service, digits, file, data.stat().st_size, login)


def _put(service: str, digits: str, body: io.BufferedIOBase, size: int, login: Login | None) -> None:
    parts = urlsplit(service)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        headers = {"Content-Length": str(size), "Connection": "close"}
        if login is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(':'.join(login).encode()).decode()}"
        # A service that refuses may answer and leave before it has read all of it.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request("PUT", f"/sha256/{digits}", body=body, headers=headers)
        answer = connection.getresponse()
        said = answer.read(_LONGEST_ANSWER).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        raise ArtifactServiceAway(
            f"cannot store artifact sha256:{digits} at {service}: {error or type(error).__name__}; check "
            "APC_ARTIFACTS_UPLOAD_URL, and whether `apc serve artifacts` runs"
        ) from error
    finally:
        connection.close()
    if answer.status not in _TAKEN:
        kind_of_error = ArtifactServiceAway if answer.status in _LATER else ArtifactError
        raise kind_of_error(f"{service} refused artifact sha256:{digits}: {answer.status} {said}")
