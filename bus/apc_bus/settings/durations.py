"""Durations as people write them in an environment: seconds, or ISO 8601."""

from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

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
