"""The trace context in headers, and the setting that turns the export on."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import TracerProvider
from pydantic import ValidationError

from apc_bus.settings import TraceSettings
from apc_bus.telemetry import (
    NO_TRACE,
    SpanKind,
    TraceHeaders,
    current_trace,
    headers_of,
    in_span,
    is_tracing,
    start_span,
    trace_headers,
    use_tracer_provider,
)
from apc_bus.trace_export import export_traces

GIVEN = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


def trace_id(headers: TraceHeaders) -> str:
    """Return what stays the same from hop to hop."""
    return headers["traceparent"].split("-")[1]


@pytest.fixture
def tracing() -> Iterator[None]:
    """Spans are made, and thrown away."""
    use_tracer_provider(TracerProvider())
    yield
    use_tracer_provider(None)


def test_a_context_is_read_and_written_as_it_came(tracing: None) -> None:
    assert trace_headers({**GIVEN, "apc-cause": "x"}) == GIVEN
    span = start_span("child", SpanKind.CONSUMER, GIVEN)
    assert span is not None
    sent = headers_of(span)
    assert trace_id(sent) == trace_id(GIVEN)
    assert sent["traceparent"] != GIVEN["traceparent"]
    assert sent["tracestate"] == GIVEN["tracestate"]
    assert trace_headers(sent) == sent


NEARLY = st.text("0123456789abcdef-gG ", max_size=60)


@given(st.dictionaries(st.sampled_from(["traceparent", "tracestate"]), NEARLY | st.integers() | st.none()))
def test_no_header_of_a_stranger_is_believed(values: dict[str, Any]) -> None:
    assert trace_headers(values) == NO_TRACE


def test_a_sender_that_is_not_sampled_stays_so(tracing: None) -> None:
    unsampled = {"traceparent": GIVEN["traceparent"][:-1] + "0"}
    span = start_span("child", SpanKind.CONSUMER, unsampled)
    assert span is not None and not span.is_recording()
    assert headers_of(span)["traceparent"].endswith("-00")


def test_what_is_sent_in_a_span_belongs_to_it(tracing: None) -> None:
    with in_span("process", "IDEA", SpanKind.CONSUMER, GIVEN):
        outer = current_trace()
        with in_span("send", "CLAIM", SpanKind.PRODUCER):
            inner = current_trace()
    assert (
        outer["traceparent"].split("-")[1] == inner["traceparent"].split("-")[1] == GIVEN["traceparent"].split("-")[1]
    )
    assert outer != inner
    with in_span("process", "IDEA", SpanKind.CONSUMER, NO_TRACE):
        assert trace_id(current_trace()) != trace_id(GIVEN)


def test_off_nothing_is_made_and_the_context_is_handed_on() -> None:
    assert not is_tracing()
    assert start_span("child", SpanKind.CONSUMER, GIVEN) is None
    with in_span("process", "IDEA", SpanKind.CONSUMER, GIVEN):
        with in_span("send", "CLAIM", SpanKind.PRODUCER):
            assert current_trace() == GIVEN
    assert current_trace() == NO_TRACE


def test_without_an_endpoint_nothing_is_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("APC_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    export_traces("apc-test")
    assert not is_tracing()


@pytest.mark.parametrize("name", ["APC_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_either_variable_names_the_collector(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://collector:4318")
    assert TraceSettings().otlp_endpoint == "http://collector:4318"
    monkeypatch.setenv(name, "collector:4317")
    with pytest.raises(ValidationError, match="APC_OTLP_ENDPOINT must be the http"):
        TraceSettings()


EXPORTS = """
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from apc_bus.settings import TraceSettings
from apc_bus.trace_export import export_traces
from apc_bus.telemetry import SpanKind, in_span

class Collector(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        for found in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in found.resource.attributes}
            print(self.path, names["service.name"], found.scope_spans[0].spans[0].name, flush=True)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass

server = HTTPServer(("127.0.0.1", 0), Collector)
threading.Thread(target=server.serve_forever, daemon=True).start()
export_traces("apc-test", TraceSettings(otlp_endpoint=f"http://127.0.0.1:{server.server_port}/", trace="all"))
with in_span("the", "last one", SpanKind.INTERNAL):
    pass
"""


def test_the_last_span_leaves_with_the_end_of_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", EXPORTS], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["/v1/traces apc-test the last one"], done.stderr


def test_off_nothing_of_opentelemetry_is_imported() -> None:
    modules = "apc_bus.trace_export, apc_bus.telemetry"
    program = f"import sys, {modules}; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
