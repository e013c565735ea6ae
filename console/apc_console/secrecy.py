"""Values as they may be shown: without passwords."""

from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr


def hide(value: Any) -> Any:
    """A value as it may be shown: the password of a URL and other secrets are `***`."""
    match value:
        case SecretStr():
            secret = value.get_secret_value()
            return ",".join(map(hide_password, secret.split(","))) if "://" in secret else "***"
        case str() if "://" in value:
            return hide_password(value)
        case _:
            return value


def hide_password(url: str) -> str:
    """A URL without its password; `***` when it cannot be read."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"
    if parts.password is None:
        # A password may also stand in the query (`?password=…`).
        return url if "password" not in parts.query else parts._replace(query="***").geturl()
    user_and_host = f"{parts.username or ''}:***@{parts.netloc.rpartition('@')[2]}"
    return parts._replace(netloc=user_and_host).geturl()
