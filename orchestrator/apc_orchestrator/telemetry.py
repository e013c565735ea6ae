"""What the orchestrator says about itself: its state, metrics, traces, and one log line a packet."""

from collections import Counter as Tally
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from heapq import nlargest
from logging import DEBUG
from typing import Protocol
from uuid import UUID
from weakref import WeakSet

import orjson
from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from apc_bus.gen_ai import messaging
from apc_bus.port import Delivery, Message
from apc_bus.telemetry import (
    NO_TRACE,
    OTHERS,
    LogIds,
    SpanKind,
    TraceHeaders,
    agent_labels,
    get_logger,
    headers_of,
    is_tracing,
    packet_attributes,
    packet_ids,
    start_span,
    trace_headers,
)
from apc_bus.topology import INGRESS, LOG
from apc_contracts.errors import PacketRefused
from apc_contracts.judging.verdict import Verdict
from apc_contracts.wire.parsing import ReceivedPacket, parse_packet
from apc_log.batch import ConflictEntry, Entry, HopEntry, PacketEntry
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.inputs import Input


class Serving(Protocol):
    """A shard that is being served."""

    @property
    def epoch(self) -> int: ...
    @property
    def batches(self) -> int: ...
    @property
    def open_sessions(self) -> int: ...
    @property
    def seconds_ahead(self) -> float: ...
    @property
    def outstanding(self) -> Mapping[str, tuple[int, int]]: ...
    @property
    def hosts(self) -> tuple[int, int] | None: ...


class ShardState:
    """Whether this process holds a shard now."""

    def __init__(self, shard: int) -> None:
        self.shard = shard
        self.server: Serving | None = None
        """The server of the current lease, while this process holds the shard."""
        self.is_standing_by = False
        """Another process holds the shard; this one consumes its queue, and takes over when that one is gone."""

    @property
    def is_active(self) -> bool:
        """Whether this process judges the shard's inputs."""
        return self.server is not None

    @property
    def epoch(self) -> int | None:
        """The epoch held, None on standby."""
        return None if self.server is None else self.server.epoch

    def take(self, server: Serving) -> None:
        """Note that the shard is held, and by which server."""
        self.server, self.is_standing_by = server, False

    def leave(self) -> None:
        """Note that the shard is neither held nor waited for."""
        self.server, self.is_standing_by = None, False


UNREAD = "unread"
"""Label `type` of inputs set aside before their type was known."""

_PACKETS = Counter(
    "apc_gate_packets",
    "Inputs judged, by packet type, verdict and refusal code. Verdicts beside the contract's: the kinds of conflicts.",
    ("type", "verdict", "code"),
)
_EVENTS = Counter(
    "apc_gate_lifecycle_events",
    "Events of the lifecycle machine: route_selected, delivery_ack, retry_scheduled, dead_lettered and the others.",
    ("event",),
)
_NACKS = Counter("apc_gate_nacks", "NACKs sent to the senders of refused packets.")
_TOKENS = Counter("apc_gate_tokens", "Tokens that handlers have reported, by the agent that spent them.", ("agent",))
_COST = Counter("apc_gate_cost", "Cost that handlers have reported, by the agent that spent it.", ("agent",))
USAGE_SERIES = 4
"""Of one agent: tokens and cost, each with the time at which it began."""
SHOWN_RECIPIENTS = 100
"""Recipients whose open deliveries are shown: those that are nearest to their bound."""
_ADMIT_SECONDS = Histogram(
    "apc_gate_admit_seconds",
    "Time to judge one packet against its contract and its session.",
    buckets=(10e-6, 25e-6, 50e-6, 100e-6, 250e-6, 1e-3, 5e-3, 25e-3, 0.1),
)
_BATCH_INPUTS = Histogram(
    "apc_gate_batch_inputs", "Inputs of a micro-batch.", buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
)
_LOG_CONFIRM_SECONDS = Histogram(
    "apc_gate_log_confirm_seconds",
    "Time until the broker has confirmed a log batch.",
    buckets=(0.5e-3, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 0.1, 0.5, 2.5, 10),
)
_packets = cache(_PACKETS.labels)
_events = cache(_EVENTS.labels)


class Logged(Protocol):
    """What is read from a batch."""

    entries: list[Entry]
    admit_seconds: list[float]
    repeats: int
    nacks: int


def count_batch(batch: Logged, inputs: int, confirm_seconds: float | None) -> None:
    """Count a confirmed batch. `confirm_seconds` is None when it had nothing to log."""
    for seconds in batch.admit_seconds:
        _ADMIT_SECONDS.observe(seconds)
    if inputs:
        _BATCH_INPUTS.observe(inputs)
    if confirm_seconds is not None:
        _LOG_CONFIRM_SECONDS.observe(confirm_seconds)
    if batch.repeats:
        _packets(UNREAD, "repeat", "").inc(batch.repeats)
    if batch.nacks:
        _NACKS.inc(batch.nacks)
    _count_entries(batch.entries)


def _count_entries(entries: Iterable[Entry]) -> None:
    packets: Tally[tuple[str, str, str]] = Tally()
    events: Tally[str] = Tally()
    for entry in entries:
        if isinstance(entry, HopEntry):
            events.update(entry.events)
            if entry.metadata is not None and b'"usage"' in entry.metadata:
                _count_usage(entry.recipient, entry.metadata)
        elif isinstance(entry, PacketEntry):
            code = "" if entry.refusal is None else orjson.loads(entry.refusal)["code"]
            packets[entry.packet_type, entry.verdict, code] += 1
        elif isinstance(entry, ConflictEntry):
            packets[UNREAD, entry.kind, entry.code or ""] += 1
    for labels, count in packets.items():
        _packets(*labels).inc(count)
    for event, count in events.items():
        _events(event).inc(count)


def _count_usage(recipient: str, metadata: bytes) -> None:
    said = orjson.loads(metadata)
    usage, refused = said.get("usage"), said.get("usage_refused") or {}
    if isinstance(usage, dict):
        agent = agent_labels.of(recipient, "usage", USAGE_SERIES)
        for name, counter in (("tokens", _TOKENS), ("cost", _COST)):
            counter.labels(agent).inc(max(0, (usage.get(name) or 0) - refused.get(name, 0)))


class _ServedShards(Collector):
    """A collector that reads, at scrape time, the shards that the gates of this process hold."""

    def __init__(self) -> None:
        self.gates: WeakSet[Serves] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        held = GaugeMetricFamily(
            "apc_gate_shards_held", "1 = this process judges the shard, 0 = it stands by.", labels=["shard"]
        )
        epoch = GaugeMetricFamily("apc_gate_epoch", "Epoch of a shard that is held.", labels=["shard"])
        sessions = GaugeMetricFamily(
            "apc_gate_sessions_open", "Sessions that have not ended, of a shard that is held.", labels=["shard"]
        )
        ahead = GaugeMetricFamily(
            "apc_gate_recorded_time_ahead_seconds",
            "By how much the recorded time of a shard that is held is ahead of the clock, which was set back.",
            labels=["shard"],
        )
        # One sample for a shard: a gate that has stopped is in the set until its memory is collected.
        states = [state for gate in list(self.gates) for state in gate.shards]
        by_shard = {state.shard: state for state in sorted(states, key=lambda state: state.server is not None)}
        servers = [state.server for state in by_shard.values() if state.server is not None]
        for state in by_shard.values():
            shard, server = str(state.shard), state.server
            held.add_metric([shard], 0 if server is None else 1)
            if server is None:
                continue
            epoch.add_metric([shard], server.epoch)
            sessions.add_metric([shard], server.open_sessions)
            ahead.add_metric([shard], server.seconds_ahead)
        yield from (held, epoch, sessions, ahead)
        yield from _open_deliveries([server.outstanding for server in servers])
        yield _hosts([server.hosts for server in servers])


def _open_deliveries(by_shard: Iterable[Mapping[str, tuple[int, int]]]) -> Iterator[Metric]:
    """Yield the open deliveries of the recipients that are nearest to their bound, and of all others together."""
    shares: dict[str, float] = {}
    counts: Tally[str] = Tally()
    for outstanding in by_shard:
        for agent_id, (count, bound) in outstanding.items():
            counts[agent_id] += count
            shares[agent_id] = max(shares.get(agent_id, 0.0), count / bound)
    deliveries = GaugeMetricFamily(
        "apc_gate_outstanding_deliveries", "Deliveries without an end, by recipient.", labels=["agent"]
    )
    share = GaugeMetricFamily(
        "apc_gate_outstanding_share",
        "Deliveries without an end in one shard, as a share of those from which on the gate refuses more.",
        labels=["agent"],
    )
    nearest = nlargest(SHOWN_RECIPIENTS, shares, key=lambda agent_id: shares[agent_id])
    for agent_id in nearest:
        deliveries.add_metric([agent_id], counts.pop(agent_id))
        share.add_metric([agent_id], shares[agent_id])
    if counts:
        deliveries.add_metric([OTHERS], counts.total())
    yield from (deliveries, share)


def _hosts(counted: Iterable[tuple[int, int] | None]) -> Metric:
    hosts = GaugeMetricFamily(
        "apc_gate_hosts", "Hosts of agents that are here, and that were here and are gone.", labels=["state"]
    )
    for present, gone in filter(None, counted):
        hosts.add_metric(["present"], present)
        hosts.add_metric(["gone"], gone)
    return hosts


class Serves(Protocol):
    """The part of an orchestrator that the metrics read."""

    @property
    def shards(self) -> Sequence[ShardState]: ...


_served = _ServedShards()
REGISTRY.register(_served)


def follow_gates(orchestrator: Serves) -> None:
    """Export the shards of an orchestrator as long as it exists."""
    _served.gates.add(orchestrator)


# The traces of packets through the orchestrator, and its own spans.
#
# A judged packet has a span under its sender's; a log batch has one that links to those of all its packets (fan-in). A
# later delivery, at a retry or a RESUME, belongs to the packet's trace as long as this lease remembers it.

# What an orchestrator logs about packets: ids, never content. Shard, epoch and batch are bound already.

_log = get_logger("apc_orchestrator")


def tell_judged(entries: Iterable[Entry]) -> None:
    """Log a line for each packet of a confirmed batch; free of cost above DEBUG."""
    if not _log.is_enabled_for(DEBUG):
        return
    for entry in entries:
        if isinstance(entry, PacketEntry):
            _log.debug(
                "packet_judged",
                packet_id=str(entry.packet_id),
                packet_type=entry.packet_type,
                session_id=entry.session_id,
                run_id=entry.run_id,
                agent_id=entry.sender_agent_id,
                verdict=entry.verdict,
                code=None if entry.refusal is None else orjson.loads(entry.refusal)["code"],
            )
        elif isinstance(entry, ConflictEntry):
            _log.debug(
                "input_set_aside",
                packet_id=None if entry.packet_id is None else str(entry.packet_id),
                session_id=entry.session_id,
                user_id=entry.user_id,
                kind=entry.kind,
                code=entry.code,
            )


def ids_of(delivery: Delivery) -> LogIds:
    """Return the ids of an input that could not be judged, as far as they are readable."""
    try:
        packet = parse_packet(delivery.message.body)
    except PacketRefused:
        return {"packet_id": delivery.message.message_id}
    return {**packet_ids(packet), "agent_id": packet.sender.agent_id}


REMEMBERED = 10_000
"""Packets whose trace is kept for later deliveries."""


_JUDGING = messaging("process", "judge", INGRESS)
_LOGGING = messaging("send", "log", LOG)


class Traces:
    """The traces of the packets of one lease."""

    def __init__(self) -> None:
        self._known: OrderedDict[UUID, TraceHeaders] = OrderedDict()

    def begin(self, batch: Batch, found: Input, message: Message) -> None:
        """Begin the span of an input that is judged now: what it causes belongs to its trace."""
        batch.trace = trace_headers(message.headers)
        if not isinstance(found, ReceivedPacket):
            return
        packet = found.packet
        if is_tracing():
            span = start_span(
                f"judge {packet.packet_type}",
                SpanKind.CONSUMER,
                batch.trace,
                (),
                {**_JUDGING, **packet_attributes(packet)},
            )
            if span is not None:
                batch.spans.append(span)
                batch.trace = headers_of(span)
        if batch.trace:
            self._known[packet.packet_id] = batch.trace
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def of(self, batch: Batch, packet_id: UUID) -> TraceHeaders:
        """Return the trace headers for a delivery of this packet; a packet without a trace continues its cause's."""
        return self._known.get(packet_id, batch.trace)


def note_verdict(batch: Batch, verdict: Verdict) -> None:
    """Record the verdict on the span of the packet that is being judged."""
    if batch.spans:
        batch.spans[-1].set_attribute("apc.verdict", verdict.kind.value)
        if verdict.refusal is not None:
            batch.spans[-1].set_attribute("apc.refusal_code", verdict.refusal.code)


@contextmanager
def logged(batch: Batch, shard: int, epoch: int) -> Iterator[TraceHeaders]:
    """Hold the span of a log batch from its publication to its confirm; yield the headers of its message."""
    where: dict[str, str | int] = {
        **_LOGGING,
        "apc.shard": shard,
        "apc.epoch": epoch,
        "apc.batch": batch.number,
        "apc.entries": len(batch.entries),
    }
    span = start_span("log batch", SpanKind.PRODUCER, NO_TRACE, batch.spans, where)
    if span is None:
        yield NO_TRACE
        return
    try:
        yield headers_of(span)
    finally:
        span.end()


def end_spans(batch: Batch) -> None:
    """End the spans of a delivered batch.

    A batch that was never confirmed leaves no spans: it never happened.
    """
    for span in batch.spans:
        span.end()
