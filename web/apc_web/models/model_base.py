"""The base of every model of the API, and the error that each route may return."""

from pydantic import BaseModel, ConfigDict, Field


class ApiModel(BaseModel):
    """A frozen model; `openapi.json` shows every field of it as present in responses."""

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)


class ProblemDocument(ApiModel):
    """An error as `application/problem+json` (RFC 9457)."""

    type: str = "about:blank"
    title: str
    """The phrase of the status."""
    status: int
    detail: str
    """What happened, and what to do; one sentence."""
    code: str
    """A word for programs, such as NOT_FOUND."""
    field: str | None = None
    """The parameter, header or member at fault."""


class NamedCount(ApiModel):
    """How often a name occurs."""

    name: str
    count: int


class LogPlace(ApiModel):
    """A place in the log: within a shard the order of `seq` is the order of causes."""

    shard: int
    seq: int


NEXT = Field(default=None, description="The cursor of the next page; null at the end.")
"""The field `next` of a page."""
