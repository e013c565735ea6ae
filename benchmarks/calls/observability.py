"""What metrics, log ids and traces (off) cost a packet, in this process: the calls alone, the best of many rounds."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from apc_agents.metrics import count_end, counted_emit, time_handler
from apc_bus.port import Message
from apc_bus.telemetry import NO_TRACE, SpanKind, begin_subject, current_trace, describe, end_subject, in_span
from apc_contracts import PacketType, seal
from apc_contracts.wire.parsing import ReceivedPacket, read_packet
from apc_log.batch import Entry, HopEntry, PacketEntry
from apc_orchestrator.batch import Batch
from apc_orchestrator.telemetry import Traces, count_batch, tell_judged
from benchmarks.support import agents, packets
from benchmarks.support.figures import Figure, Figures

BATCH = 64
"""Packets of the batch that is counted, each with three hops."""
ROUNDS, CALLS = 300, 100
LIFE = (["emit", "schema_pass", "policy_pass", "route_selected"], ["delivery_ack", "consumer_apply"], ["persisted"])


def measure_observability(figures: Figures) -> None:
    """CPU of a packet at the orchestrator, and in a worker that handles and answers it; both without trace context."""
    packet = packets.typical_packet("observability", agents.source.actor, [agents.sink.agent_id])
    received = read_packet(seal(packet).body)
    message = Message(received.body, str(packet.packet_id))
    batch, traces = _batch(received), Traces()

    def follow() -> None:
        traces.begin(batch, received, message)
        traces.of(batch, packet.packet_id)

    def count() -> None:
        count_batch(batch, BATCH, 0.001)
        tell_judged(batch.entries)

    def handle() -> None:
        subject = begin_subject(dict)
        with in_span("process", PacketType.IDEA, SpanKind.CONSUMER, NO_TRACE):
            describe(packet)
            began = time.perf_counter()
            with counted_emit("sink", PacketType.IDEA), in_span("send", PacketType.IDEA, SpanKind.PRODUCER):
                current_trace()
            time_handler("sink", PacketType.IDEA, began)
            count_end("sink", PacketType.IDEA, "outcome")
        end_subject(subject)

    gate = _microseconds(follow) + _microseconds(count) / BATCH
    figures.add(
        Figure(
            "observability_gate", gate, "µs/packet", note=f"metrics of a batch of {BATCH}, logs at INFO, traces off"
        ),
        Figure(
            "observability_worker", _microseconds(handle), "µs/packet", note="a packet handled and answered, likewise"
        ),
    )


def _batch(received: ReceivedPacket) -> Batch:
    packet, now = received.packet, datetime.now(UTC)
    trace = packet.trace
    entries: list[Entry] = [
        PacketEntry(
            packet.packet_id, packet.packet_type.value, packet.channel.value, packet.run_phase.value, trace.session_id,
            trace.run_id, trace.task_id, trace.root_packet_id, None, None, packet.sender.agent_id, packet.sender.role,
            packet.sender.swarm_id, ["sink"], 0, 0, 0, packet.confidence, now, now, "accepted", None, b"", b"{}",
            received.body, received.packet_hash, received.payload_hash, "guest", None,
        ),
        *(
            HopEntry(trace.session_id, packet.packet_id, "sink", 1, "", "", events, [now] * len(events), "gate", None)
            for events in LIFE
        ),
    ]  # fmt: skip
    return Batch(1, now, entries=entries * BATCH, admit_seconds=[20e-6] * BATCH)


def _microseconds(action: Callable[[], None]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(CALLS):
            action()
        best = min(best, time.perf_counter() - began)
    return best / CALLS * 1e6
