"""The base model of every part of a contract file."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Word = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A part of the file: frozen, unknown keys refused, numbers finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
