"""Hide secrets in values that are shown."""

from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

HIDDEN = "***"
PLAIN_PARAMETERS = frozenset(
    {
        "application_name",
        "cafile",
        "certfile",
        "channel_max",
        "connect_timeout",
        "connection_timeout",
        "frame_max",
        "heartbeat",
        "host",
        "keyfile",
        "name",
        "no_verify_ssl",
        "port",
        "region",
        "sslcert",
        "sslkey",
        "sslmode",
        "sslrootcert",
        "target_session_attrs",
        "user",
    }
)
"""Query parameters whose values are no secrets; any other may be one."""


def hide(value: Any) -> Any:
    """Return a value for display: secrets in URLs and other secrets become `***`."""
    match value:
        case SecretStr():
            secret = value.get_secret_value()
            return ",".join(map(hide_password, secret.split(","))) if "://" in secret else HIDDEN
        case str() if "://" in value:
            return hide_password(value)
        case dict():
            return {name: hide(one) for name, one in value.items()}
        case _:
            return value


def hide_password(url: str) -> str:
    """Return a URL without its password and without possible secrets in its query and fragment.

    Returns `***` when it cannot be parsed.
    """
    try:
        parts = urlsplit(url)
        user, password, host = parts.username, parts.password, parts.netloc.rpartition("@")[2]
    except ValueError:
        return HIDDEN
    if password:
        host = f"{user or ''}:{HIDDEN}@{host}"
    elif user:  # over HTTP a token alone
        host = f"{HIDDEN if parts.scheme in ('http', 'https') else user}@{host}"
    query = f"?{_hide_query(parts.query)}" if parts.query else ""
    fragment = f"#{HIDDEN}" if parts.fragment else ""
    # By hand: `geturl` drops the slashes of a URL without a host.
    return f"{parts.scheme}://{host}{parts.path}{query}{fragment}"


def _hide_query(query: str) -> str:
    return "&".join(_hide_parameter(parameter) for parameter in query.split("&"))


def _hide_parameter(parameter: str) -> str:
    """Hide a parameter's value; a name without a value may itself be a token."""
    name, is_there, _ = parameter.partition("=")
    if not is_there:
        return HIDDEN
    return parameter if name in PLAIN_PARAMETERS else f"{name}={HIDDEN}"
