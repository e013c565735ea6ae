"""Where a setting comes from: environment, else `.env`, else a file of a secret; what every service reads."""

import re
from collections.abc import Sequence
from datetime import timedelta
from os.path import exists, isdir  # a folder that we may not enter is no error, as it is one of Path
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BeforeValidator, Field, SecretStr, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from apc_contracts.identity.ids import NUMBERS_OF_SHARDS, SLOTS

_TIMEDELTA = TypeAdapter(timedelta)


def _read(value: Any) -> Any:
    """Return a text as a timedelta. Raises ValueError with what to write instead."""
    if not isinstance(value, str):
        return value
    try:
        return timedelta(seconds=float(value))
    except (ValueError, OverflowError):  # no number, or none that a timedelta holds
        pass
    try:
        return _TIMEDELTA.validate_python(value)
    except ValidationError as error:
        raise ValueError("write seconds, such as 5 or 0.5, or an ISO 8601 duration, such as PT5M") from error


Duration = Annotated[timedelta, BeforeValidator(_read), Field(ge=timedelta(0))]
"""A timedelta of 0 or more; as text a number of seconds, `PT0.5S` or `00:00:00.5`. Bounds are checked after reading."""
Interval = Annotated[Duration, Field(gt=timedelta(0))]
"""A duration above 0: how often, or for how long at least, something goes on."""


PREFIX = "APC_"
SECRETS = Path("/run/secrets")
"""Where containers have secrets as files: `apc_database_url` is APC_DATABASE_URL."""
_OF_FIELD = re.compile(r'field "(\w+)"')
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
        defer_build=True,
    )

    def __init__(self, **values: Any) -> None:
        """Read the settings. Raises ValidationError."""
        try:
            super().__init__(**values)
        except SettingsError as error:  # of no field, as pydantic says it: what is no JSON
            named = _OF_FIELD.search(str(error))
            problem = ValueError("write it as JSON, as docs/reference/settings.md shows it")
            line: InitErrorDetails = {"type": PydanticCustomError("value_error", str(problem)), "input": None}
            line["loc"] = (named[1] if named else "settings",)
            raise ValidationError.from_exception_data(type(self).__name__, [line]) from error

    @model_validator(mode="after")
    def _refuse_passwords_of_the_example(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr) and holds_example(value.get_secret_value()):
                raise ValueError(
                    f"{variable_of(type(self), name)} holds an example password: `apc deploy init` makes random ones"
                )
        return self


def holds_example(secret: str) -> bool:
    """Return whether it is an example, as it is or as the server gets it: in a URL `change%31me` is `change1me`."""
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


def check_ports(url: str) -> None:
    """Check the ports of all servers that a URL of a database names.

    Raises:
        ValueError: one is out of range.
    """
    parts = urlsplit(url)
    servers = parts.netloc.rpartition("@")[2].split(",")
    named = [port for server in servers for port in re.findall(r":(\d+)\Z", server)]
    for port in [*named, *",".join(parse_qs(parts.query).get("port", [])).split(",")]:
        if port.isdecimal() and not 1 <= int(port[:6]) <= 65535:
            raise ValueError(f"must have ports from 1 to 65535 (got {port})")


def variable_of(kind: type[BaseSettings], field: str) -> str:
    """Return the environment variable of a field."""
    return f"{kind.model_config.get('env_prefix', '')}{field}".upper()


class DeploymentSettings(ApcSettings):
    """Shards, contract and data folder of the deployment."""

    shards: int = Field(default=1, ge=1, le=SLOTS)
    """Number of shards: a power of two, 16 for a cluster. The same for every service, and part of the topology."""
    contract: str | None = None
    """Path of the contract file; none = the packaged apc/1.0. The gate judges packets by its contract;
    `limits.outstanding_deliveries` also sets the size of inboxes."""
    contracts: str | None = None
    """Folder of contract files (`*.json`) that `apc up` and `apc run` register when they start, as `apc contract
    register` does; a START of apc/1.1 names one by the `name` in it. Orchestrators do not read it."""
    data_dir: Path = Path(".apc")
    """Folder of the embedded database, the artifacts and the keys."""

    @field_validator("shards")
    @classmethod
    def _check_shards(cls, value: int) -> int:
        if value not in NUMBERS_OF_SHARDS:
            below = 1 << value.bit_length() - 1
            raise ValueError(
                f"must be a power of two from 1 to {SLOTS} (got {value}): set {below} or {2 * below}; a broker with "
                f"{value} shards of release 0.1.0 changes over as docs/how-to/operations.md says"
            )
        return value

    @field_validator("data_dir")
    @classmethod
    def _check_data_dir(cls, value: Path) -> Path:
        for place in (value, *value.parents):
            if exists(place) and not isdir(place):
                raise ValueError(f"must be a folder ({place} is none)")
        return value


class ServedShards(DeploymentSettings):
    """Shards of one orchestrator or persister."""

    serve_shards: list[int] | None = None
    """Shards that this process serves, as JSON, for example [0, 2]; default: all. Several orchestrators or persisters
    divide the shards in this way. `apc up` and `apc run` in one process always serve all."""

    @model_validator(mode="after")
    def _check_serve_shards(self) -> Self:
        served = self.serve_shards
        if served is not None and (not served or sorted(set(served)) != sorted(served)):
            raise ValueError("APC_SERVE_SHARDS must name at least one shard, and each once, for example [0, 2]")
        if served is not None and not set(served) <= set(range(self.shards)):
            raise ValueError(
                f"APC_SERVE_SHARDS names {served}, and APC_SHARDS={self.shards} makes 0 to {self.shards - 1}"
            )
        return self

    @property
    def own_shards(self) -> list[int]:
        """The shards to serve."""
        return list(range(self.shards)) if self.serve_shards is None else self.serve_shards
