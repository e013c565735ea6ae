"""What an EVAL measures by: thresholds of apc/1.0; in apc/1.1 open metrics, each with the limits that it must keep."""

from collections.abc import Mapping
from typing import Annotated, Final, Self

from pydantic import Field, model_validator

from apc_contracts.contract_model import Fraction, Model, Name, OpenMap, Ratio, SchemaId, broken

# Typed data of apc/1.1 that travels inside another payload.


class Result(Model):
    """What work, or a request, came to: `content` fits the registered schema. In JSON `schema_id` is `schema`."""

    schema_id: SchemaId = Field(alias="schema")
    content: OpenMap


MAX_METRICS: Final = 256


class Thresholds(Model):
    """The sender's own thresholds. They never widen the promotion gate."""

    rtf: Fraction
    stability: Fraction
    audit: Fraction
    outcome: Fraction
    learnability: Fraction
    generalization_ratio: Ratio
    drift_risk: Fraction | None = None


class MetricLimit(Model):
    """The smallest and the largest value that a metric may have, both included; at least one of them."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.min is None and self.max is None:
            raise broken("", "a limit has min, max or both: give one")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise broken("min", "min is above max: exchange them")
        return self

    def holds(self, value: float) -> bool:
        """Return whether a value is within the limit."""
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class Measurements(Model):
    """Metrics by name, and limits of some of them."""

    metrics: Annotated[Mapping[Name, float], Field(min_length=1, max_length=MAX_METRICS)]
    limits: Annotated[Mapping[Name, MetricLimit], Field(max_length=MAX_METRICS)] | None = None

    @model_validator(mode="after")
    def _limits_are_of_metrics(self) -> Self:
        for name in self.limits or ():
            if name not in self.metrics:
                raise broken(f"limits.{name}", f"{name} is not measured: give it in metrics, or leave its limit out")
        return self

    @property
    def missed(self) -> tuple[str, ...]:
        """The metrics that are outside of their limits."""
        limits = self.limits or {}
        return tuple(name for name, value in self.metrics.items() if name in limits and not limits[name].holds(value))
