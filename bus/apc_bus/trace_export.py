"""Exports spans over OTLP/HTTP, when a setting says where to. The SDK is the extra `otel`; it is imported only then."""

import os
import socket

from apc_bus.errors import TracingUnavailable
from apc_bus.settings import TraceSettings
from apc_bus.telemetry import TraceScope, use_tracer_provider

TRACES_PATH = "/v1/traces"


def export_traces(service: str, settings: TraceSettings | None = None) -> None:
    """Make spans from now on and export them in batches, the last ones at the end of the process.

    Does nothing without an endpoint. `service` is the service.name unless OTEL_SERVICE_NAME gives another.

    Raises:
        TracingUnavailable: an endpoint is set and the extra `otel` is not installed.
    """
    settings = settings or TraceSettings()
    endpoint = settings.otlp_endpoint
    if endpoint is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise TracingUnavailable from error
    name = os.environ.get("OTEL_SERVICE_NAME") or service
    instance = f"{socket.gethostname()}.{os.getpid()}"
    provider = TracerProvider(resource=Resource.create({"service.name": name, "service.instance.id": instance}))
    exporter = OTLPSpanExporter(endpoint=endpoint.rstrip("/") + TRACES_PATH)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    use_tracer_provider(provider, TraceScope(settings.trace))
