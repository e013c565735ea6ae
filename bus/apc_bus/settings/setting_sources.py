"""Where a setting comes from: the environment, else `.env`, else the file of a secret, else its default."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from pydantic import SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "APC_"
SECRETS = Path("/run/secrets")
"""Where containers have secrets as files: `apc_database_url` is APC_DATABASE_URL."""
_OF_THE_EXAMPLE = re.compile(r"\bchange\d*me\b", re.IGNORECASE)


class ApcSettings(BaseSettings):
    """Settings of one subject. A field is declared in one class alone; what several services read, they inherit."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        secrets_dir=SECRETS if SECRETS.is_dir() else None,
        extra="ignore",
        frozen=True,
    )

    @model_validator(mode="after")
    def _refuse_passwords_of_the_example(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr) and _holds_an_example(value.get_secret_value()):
                raise ValueError(
                    f"{variable_of(type(self), name)} holds an example password: `apc deploy init` makes random ones"
                )
        return self


def _holds_an_example(secret: str) -> bool:
    """Look at it as it is, and as the server gets it: in a URL `change%31me` is `change1me`."""
    return any(_OF_THE_EXAMPLE.search(text) for text in (secret, unquote(secret)))


def check_scheme(url: str, schemes: Sequence[str], *, or_folder: bool = False) -> None:
    """Check how a URL begins; with `or_folder` it may be the path of a folder.

    Raises:
        ValueError: it begins otherwise.
    """
    scheme, is_url, _ = url.partition("://")
    if (is_url and scheme in schemes) or (or_folder and not is_url):
        return
    wanted = " or ".join(f"{scheme}://" for scheme in schemes) + (", or be a folder" if or_folder else "")
    raise ValueError(f"must begin with {wanted} (got {f'{scheme}://' if is_url else 'no URL'})")


def variable_of(kind: type[BaseSettings], field: str) -> str:
    """Return the environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()
