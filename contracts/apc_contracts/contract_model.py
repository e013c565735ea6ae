"""The base of every model of the contract, and the scalar types that their fields are made of."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, JsonValue
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

MAX_NAME_LENGTH = 256
"""Bound of identifiers without their own pattern: a log index refuses rows of more than 2.7 kB."""
MAX_DURATION_MS = 365 * 86_400_000
"""The limit of a session's deadlines, so that `now + duration` is always a valid time."""

EARLIEST_TIME = datetime(1, 1, 2, tzinfo=UTC)
LATEST_TIME = datetime(9998, 12, 31, tzinfo=UTC)
"""Between these limits, every time has a UTC form and a TTL can be added to it."""

ID_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._:-]{0,63}$"
UUID_PATTERN = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
TIME_PATTERN = (
    r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
SHA256_PATTERN = r"^[0-9a-f]{64}$"
PUBLIC_KEY_PATTERN = r"^[A-Za-z0-9+/]{43}=$"
SCHEMA_PATTERN = r"^[A-Za-z][A-Za-z0-9._-]{0,63}/[1-9][0-9]{0,8}$"
ARTIFACT_HASH_PATTERN = r"^sha256:[0-9a-f]{64}$"


class Model(BaseModel):
    """A frozen value of the contract: unknown fields and numbers that are not finite are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
        defer_build=True,
    )


class _CanonicalUuid:
    """A UUID; in JSON only in canonical form: lower case, with hyphens."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(pattern=UUID_PATTERN)
        return core_schema.json_or_python_schema(
            json_schema=core_schema.chain_schema([text, core_schema.uuid_schema(strict=False)]),
            python_schema=core_schema.uuid_schema(strict=False),
            serialization=core_schema.to_string_ser_schema(when_used="json"),
        )

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "format": "uuid"}


class _UtcTime:
    """A time with an offset, in JSON as RFC 3339; held and written in UTC.

    Digits beyond the microsecond are accepted and dropped.
    """

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        text = core_schema.str_schema(pattern=TIME_PATTERN)
        bounded = core_schema.datetime_schema(tz_constraint="aware", ge=EARLIEST_TIME, le=LATEST_TIME)
        read = core_schema.no_info_before_validator_function(_read_time, bounded)
        return core_schema.json_or_python_schema(
            json_schema=core_schema.chain_schema([text, read]),
            python_schema=core_schema.no_info_after_validator_function(_to_utc, bounded),
        )

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "format": "date-time"}


def _read_time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise PydanticCustomError("time_invalid", "no such time: send an RFC 3339 time with an offset") from error


def _to_utc(time: datetime) -> datetime:
    return time.astimezone(UTC)


Uuid = Annotated[UUID, _CanonicalUuid]
Time = Annotated[datetime, _UtcTime]
Id = Annotated[str, Field(pattern=ID_PATTERN)]
"""The id of an agent, swarm, session, run or task."""
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
"""Any other identifier."""
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
"""A SHA-256 in lower-case hex."""
ArtifactHash = Annotated[str, Field(pattern=ARTIFACT_HASH_PATTERN)]
SchemaId = Annotated[str, Field(pattern=SCHEMA_PATTERN)]
"""The name and version of a registered schema, like finding/1."""
Fraction = Annotated[float, Field(ge=0, le=1)]
"""A number in 0..1."""
Change = Annotated[float, Field(ge=-1, le=1)]
"""A number in -1..1."""
Ratio = Annotated[float, Field(ge=0, le=2)]
"""A number in 0..2."""
Count = Annotated[int, Field(ge=0, le=2**53 - 1)]
"""A number of things; the largest is the last integer that every reader of JSON knows exactly."""
DurationMs = Annotated[int, Field(ge=1, le=MAX_DURATION_MS)]
OpenMap = Mapping[str, JsonValue]
"""A JSON object with arbitrary keys."""


def broken(path: str, message: str) -> PydanticCustomError:
    """Return an error for a broken rule between fields, for a validator to raise."""
    return PydanticCustomError("rule_broken", "{message}", {"message": message, "path": path})
