"""The export of spans."""

from typing import Self

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.setting_sources import ApcSettings


class TraceSettings(ApcSettings):
    """Where spans go; the SDK reads the other variables of OpenTelemetry itself (OTEL_TRACES_SAMPLER, …)."""

    model_config = SettingsConfigDict(populate_by_name=True)

    otlp_endpoint: str | None = Field(
        default=None, validation_alias=AliasChoices("APC_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    )
    """Base URL of an OpenTelemetry collector (`http://host:4318`), also as OTEL_EXPORTER_OTLP_ENDPOINT; none = no
    traces."""

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ValueError("APC_OTLP_ENDPOINT must be the http:// or https:// URL of a collector (OTLP over HTTP)")
        return self
