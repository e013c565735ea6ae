"""Payload of SIGNAL WAKE of apc/1.1: a timer that an agent sets, and its coming back (docs/how-to/timers.md)."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from apc_contracts.contract_model import DurationMs, Model, Time, broken

MAX_KEY = 200
WakeKey = Annotated[str, Field(min_length=1, max_length=MAX_KEY)]


class WakeSpec(Model):
    """A timer of an agent in its session; a later one with the same key replaces it.

    An agent sets it to go off `after_ms` or `at`. The orchestrator's WAKE names in `at` when it was due.
    """

    key: WakeKey
    after_ms: DurationMs | None = None
    at: Time | None = None

    @model_validator(mode="after")
    def _has_one_time(self) -> Self:
        if (self.after_ms is None) == (self.at is None):
            raise broken("at", "a wake has one time: give after_ms or at")
        return self
