"""`apc asyncapi`: the bus as an AsyncAPI 3.0 document."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from apc_bus import headers
from apc_bus.settings import BusSettings
from apc_bus.topology import (
    DEAD,
    DEAD_QUEUE,
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    RETRY,
    RETRY_DELAYS_MS,
    SUBSTRATE,
    SUBSTRATE_STREAM,
    ExchangeKind,
    Topology,
    agent_queue,
    gate_queue,
    host_queue,
    intra_exchange,
    log_queue,
    retry_key,
    retry_queue,
)
from apc_cli import __version__
from apc_cli.connections import planned_topology
from apc_cli.output.files import write_output
from apc_cli.output.output import to_json
from apc_contracts.identity.ids import SLOTS
from apc_contracts.packet import PACKET_TYPES
from apc_contracts.schema_export import packet_schema, receipts_schema, registry_change_schema
from apc_contracts.vocabulary import CONTROL_TYPES, PROTOCOL_VERSION, PacketType, RunPhase
from apc_log.batch import CONTENT_TYPE as LOG_CONTENT_TYPE
from apc_log.batch import EPOCH_OPEN_TYPE, LOG_BATCH_TYPE, SIGNS_TYPE

# The bus as an AsyncAPI 3.0 document, generated from the packet models and the topology.
#
# Channels are exchanges (to write to) and queues (to read from); an operation is tagged by who performs it. Source:
# AsyncAPI 3.0.0, AMQP bindings 0.3.0.

Document = dict[str, Any]

BINDING_VERSION = "0.3.0"
_AGENT = "{agent_id}"
_HOST = "{host}"
_SHARD = "{shard}"
_SLOT = "{slot}"
_DELAY = "{delay_ms}"
_DEFINITIONS = "#/$defs/"
_SCHEMAS = "#/components/schemas/"
_UUID = {"type": "string", "format": "uuid"}
_TRACE = {headers.TRACEPARENT: {"type": "string"}, headers.TRACESTATE: {"type": "string"}}
_RIDING = {headers.RECEIPTS: {"type": "string", "description": "a JSON array of receipts, as text"}}
_COUNT = {"type": "integer", "minimum": 0}
DESCRIPTION = (
    "Agents publish typed packets to the gate, which admits them by contract, writes them to the log and delivers "
    "them. The AMQP property user_id is required of everything that is published, message_id is the packet_id, "
    "correlation_id the root_packet_id. What a schema cannot say is in docs/reference/protocol.md; the format of log "
    "batches is in docs/reference/log-format.md."
)


@dataclass(frozen=True, slots=True)
class AsyncApiChannel:
    """An exchange with the address as routing key, or a queue with the address as name."""

    address: str
    description: str
    messages: tuple[str, ...]
    exchange: str | None = None
    kind: ExchangeKind = ExchangeKind.DIRECT

    def document(self, topology: Topology) -> Document:
        """Return the Channel Object."""
        described: Document = {
            "address": self.address or None,
            "description": self.description,
            "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in self.messages},
            "bindings": {"amqp": self._binding()},
        }
        named = {
            "shard": (_SHARD, _shard_parameter),
            "slot": (_SLOT, _slot_parameter),
            "agent_id": (_AGENT, _agent_parameter),
            "host": (_HOST, _host_parameter),
            "delay_ms": (_DELAY, _delay_parameter),
        }
        parameters = {name: of(topology) for name, (mark, of) in named.items() if mark in self.address}
        return described | ({"parameters": parameters} if parameters else {})

    def _binding(self) -> Document:
        if self.exchange is None:
            queue = {"name": self.address, "durable": True, "exclusive": False, "autoDelete": False}
            return {"is": "queue", "queue": queue, "bindingVersion": BINDING_VERSION}
        exchange = {"name": self.exchange, "type": self.kind.value, "durable": True, "autoDelete": False}
        return {"is": "routingKey", "exchange": exchange, "bindingVersion": BINDING_VERSION}


def asyncapi_document(topology: Topology, nodes: Sequence[str] = ()) -> Document:
    """Return the AsyncAPI 3.0 document of a deployment.

    Args:
        topology: its shards, and its agents as the values that the channels of agents may take.
        nodes: AMQP URLs of the broker's nodes; user and password do not show.
    """
    channels = _channels()
    servers = {f"node{number}": _server(url) for number, url in enumerate(nodes, 1)}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": f"apc-bus, {PROTOCOL_VERSION}",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        **({"servers": servers} if servers else {}),
        "channels": {name: channel.document(topology) for name, channel in channels.items()},
        "operations": _operations(channels),
        "components": {"schemas": _schemas(), "messages": _messages()},
    }


_LOG_MESSAGES = {
    LOG_BATCH_TYPE: "A log batch",
    EPOCH_OPEN_TYPE: "A gate takes a shard",
    SIGNS_TYPE: "When agents were heard of last",
}


def _channels() -> dict[str, AsyncApiChannel]:
    sent, delivered = tuple(map(str, PacketType)), tuple(map(_delivered, PacketType))
    normal = tuple(_delivered(kind) for kind in PacketType if kind not in CONTROL_TYPES)
    inputs = (*sent, "receipts", "registry")
    log = tuple(_LOG_MESSAGES)
    waiting_receipts = "Receipts retry_due of the gate to itself: when their time is over they go to apc.receipts."
    own_exchange, dead = intra_exchange(_AGENT), "Deliveries that the broker gave up."
    return {
        "ingress": AsyncApiChannel(_SLOT, "Packets on their way to the gate of their session's slot.", sent, INGRESS),
        "receipts": AsyncApiChannel(
            _SLOT,
            "What became of deliveries, an operator's changes of the registry, and INTRA_AGENT packets for the log.",
            inputs,
            RECEIPTS,
        ),
        "gate": AsyncApiChannel(_per_shard(gate_queue), "The inputs of a shard; one active consumer.", inputs),
        "interAgent": AsyncApiChannel(
            "{type}.{swarm_id}.{recipient}",
            "Accepted packets on their way to the queues of their recipients, the words percent-encoded; with a fourth "
            "word `urgent` for the urgent queue. To an agent of a host: `host.{host}.{recipient}`.",
            delivered,
            INTER_AGENT,
            ExchangeKind.TOPIC,
        ),
        "inboxUrgent": AsyncApiChannel(
            agent_queue(_AGENT, urgent=True), "An agent's control types, and priority 5 or more.", delivered
        ),
        "inboxNormal": AsyncApiChannel(agent_queue(_AGENT, urgent=False), "An agent's other packets.", normal),
        "hostUrgent": AsyncApiChannel(host_queue(_HOST, True), "As inboxUrgent, for all agents of a host.", delivered),
        "hostNormal": AsyncApiChannel(host_queue(_HOST, False), "As inboxNormal, for all agents of a host.", normal),
        "intraUrgent": AsyncApiChannel("urgent", "Between the processes of one agent.", sent, own_exchange),
        "intraNormal": AsyncApiChannel("normal", "Between the processes of one agent.", sent, own_exchange),
        "substrate": AsyncApiChannel("", "Accepted packets for any reader.", delivered, SUBSTRATE, ExchangeKind.FANOUT),
        "substrateStream": AsyncApiChannel(SUBSTRATE_STREAM, "The substrate, from any offset.", delivered),
        "log": AsyncApiChannel(_SHARD, "What the gate decided, one message a micro-batch.", log, LOG),
        "logQueue": AsyncApiChannel(_per_shard(log_queue), "The log batches of a shard; one active consumer.", log),
        "retry": AsyncApiChannel(
            _per_shard(partial(retry_key, 0)).replace("0", _DELAY, 1), waiting_receipts, ("receipts",), RETRY
        ),
        "retryQueue": AsyncApiChannel(retry_queue(0).replace("0", _DELAY), waiting_receipts, ("receipts",)),
        "dead": AsyncApiChannel("", dead, delivered, DEAD, ExchangeKind.FANOUT),
        "deadQueue": AsyncApiChannel(DEAD_QUEUE, dead, delivered),
    }


def _operations(channels: Mapping[str, AsyncApiChannel]) -> Document:
    operation = partial(_operation, channels)
    return {
        "sendPacket": operation("send", "ingress", "agent", "Ask the gate to judge and deliver a packet."),
        "reportReceipts": operation("send", "receipts", "agent", "Say what became of deliveries.", ["receipts"]),
        "logIntraAgent": operation("send", "receipts", "agent", "Hand an INTRA_AGENT packet to the log.", PacketType),
        "receiveUrgent": operation("receive", "inboxUrgent", "agent", "Take packets, these first."),
        "receiveNormal": operation("receive", "inboxNormal", "agent", "Take packets."),
        "hostReceiveUrgent": operation("receive", "hostUrgent", "host", "Take packets of all its agents, these first."),
        "hostReceiveNormal": operation("receive", "hostNormal", "host", "Take packets of all its agents."),
        "sendIntraUrgent": operation("send", "intraUrgent", "agent", "To a replica of the agent itself."),
        "sendIntraNormal": operation("send", "intraNormal", "agent", "To a replica of the agent itself."),
        "readSubstrate": operation("receive", "substrateStream", "agent", "Read what was sent to all."),
        "changeRegistry": operation("send", "receipts", "operator", "Register or revoke an agent.", ["registry"]),
        "judge": operation("receive", "gate", "gate", "Judge the inputs of a shard."),
        "writeLog": operation("send", "log", "gate", "Log a batch, before anything of it is delivered."),
        "deliver": operation("send", "interAgent", "gate", "Deliver an accepted packet to one recipient."),
        "putOff": operation("send", "retry", "gate", "Let a retry wait in a delay queue; nobody consumes it."),
        "publishSubstrate": operation("send", "substrate", "gate", "Deliver an accepted packet to the stream."),
        "collectDead": operation("receive", "deadQueue", "gate", "Record what the broker gave up."),
        "persist": operation("receive", "logQueue", "log writer", "Write a batch in one transaction."),
    }


def _operation(
    channels: Mapping[str, AsyncApiChannel],
    action: str,
    channel: str,
    who: str,
    summary: str,
    messages: Iterable[str] = (),
) -> Document:
    chosen = list(messages) or channels[channel].messages
    does = {"deliveryMode": 2, "mandatory": True} if action == "send" else {"ack": True}
    return {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "summary": summary,
        "tags": [{"name": who}],
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in chosen],
        "bindings": {"amqp": does | {"bindingVersion": BINDING_VERSION}},
    }


def _messages() -> Document:
    messages: Document = {}
    for kind, packet in PACKET_TYPES.items():
        payload = {"$ref": _SCHEMAS + packet.__name__}
        messages[kind] = _message(kind, f"{kind}, as its sender publishes it", payload, "SentHeaders")
        messages[_delivered(kind)] = _message(kind, f"{kind}, as the gate delivers it", payload, "DeliveryHeaders")
    messages["receipts"] = _message(headers.TYPE_RECEIPTS, "Receipts", {"$ref": _SCHEMAS + "Receipts"})
    messages["registry"] = _message(headers.TYPE_REGISTRY, "A registry change", {"$ref": _SCHEMAS + "RegistryChange"})
    for name, title in _LOG_MESSAGES.items():
        messages[name] = _message(name, title) | {"contentType": LOG_CONTENT_TYPE}
    return messages


def _message(amqp_type: str, title: str, payload: Document | None = None, headers_of: str | None = None) -> Document:
    message: Document = {
        "name": amqp_type,
        "title": title,
        "bindings": {"amqp": {"messageType": amqp_type, "bindingVersion": BINDING_VERSION}},
    }
    if payload is not None:
        message["payload"] = payload
    if headers_of is not None:
        message["headers"] = {"$ref": _SCHEMAS + headers_of}
    return message


def _schemas() -> Document:
    """Return the exported JSON Schemas as Schema Objects, with the headers of both directions."""
    packets, receipts, changes = packet_schema(), receipts_schema(), registry_change_schema()
    definitions: Document = {}
    for schema in (packets, receipts, changes):
        for name, definition in schema["$defs"].items():
            if definitions.setdefault(name, definition) != definition:
                raise ValueError(f"two schemas have the name {name} and are not equal")
    definitions["Receipts"] = {"type": "array", "items": receipts["items"]}
    definitions["RegistryChange"] = {"discriminator": changes["discriminator"], "oneOf": changes["oneOf"]}
    moved: Document = {name: _as_schema_object(definition) for name, definition in definitions.items()}
    return moved | {"SentHeaders": _sent_headers(), "DeliveryHeaders": _delivery_headers()}


def _as_schema_object(schema: Any) -> Any:
    """Convert JSON Schema 2020-12 to AsyncAPI's dialect, draft 07.

    References are moved, and a discriminator is a property's name.
    """
    if isinstance(schema, list):
        return [_as_schema_object(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _as_schema_object(value) for key, value in schema.items()}
    reference, discriminator = schema.get("$ref"), schema.get("discriminator")
    if isinstance(reference, str):
        return {"$ref": _SCHEMAS + reference.removeprefix(_DEFINITIONS)}  # draft 07 ignores siblings of $ref
    if isinstance(discriminator, dict) and "propertyName" in discriminator:
        moved["discriminator"] = discriminator["propertyName"]
    return moved


def _sent_headers() -> Document:
    signature = {"type": "string", "pattern": "^[^:]+:[A-Za-z0-9+/]+=*$"}
    properties = {headers.CAUSE: _UUID, headers.ORDINAL: _COUNT, headers.SIGNATURE: signature} | _RIDING | _TRACE
    return {"type": "object", "properties": properties, "dependencies": {headers.CAUSE: [headers.ORDINAL]}}


def _delivery_headers() -> Document:
    """Return the headers of deliveries.

    Without apc-mark it is the NACK of a refused packet; without session headers the orchestrator holds no session.
    """
    always = {headers.SHARD: _COUNT, headers.EPOCH: _COUNT, headers.BATCH: _COUNT, headers.ATTEMPT: _COUNT}
    at_times = {
        headers.MARK: {"type": "string", "pattern": r"^[0-9]+\.[0-9]+$"},
        headers.STATE_STEP: _COUNT,
        headers.PHASE: {"type": "string", "enum": [str(phase) for phase in RunPhase]},
        headers.ROUND: _COUNT,
        headers.GENERATION: _COUNT,
        headers.RIGHTS: {"type": "string", "pattern": "^[a-z]+(,[a-z]+)*$"},
    } | _TRACE
    return {"type": "object", "properties": always | at_times, "required": list(always)}


def _delivered(kind: PacketType) -> str:
    return f"{kind}.delivered"


def _per_shard(name_of: Callable[[int], str]) -> str:
    return name_of(0).removesuffix("0") + _SHARD


def _shard_parameter(topology: Topology) -> Document:
    return {
        "description": "The slot of its sessions, modulo the number of shards.",
        "enum": [str(shard) for shard in range(topology.shards)],
    }


def _slot_parameter(topology: Topology) -> Document:
    return {
        "description": f"CRC-32 (ISO-HDLC) of the UTF-8 session_id, modulo {SLOTS}; a shard's number for all of it",
        "enum": [str(slot) for slot in range(SLOTS)],
    }


def _delay_parameter(topology: Topology) -> Document:
    return {"description": "Milliseconds that a message waits.", "enum": [str(delay) for delay in RETRY_DELAYS_MS]}


def _agent_parameter(topology: Topology) -> Document:
    agents = [agent.agent_id for agent in topology.agents if agent.host is None]
    return {"description": "A registered agent."} | ({"enum": agents} if agents else {})


def _host_parameter(topology: Topology) -> Document:
    hosts = [one.host for one in topology.hosts]
    return {"description": "A process that runs many agents.", **({"enum": hosts} if hosts else {})}


def _server(url: str) -> Document:
    parts = urlsplit(url)
    host = parts.hostname or "localhost"
    return {
        "host": host if parts.port is None else f"{host}:{parts.port}",
        "protocol": parts.scheme,
        "protocolVersion": "0.9.1",
        "pathname": parts.path or "/",
    }


async def asyncapi(out: Annotated[Path, typer.Option(help="The file; - is standard output.")] = Path("-")) -> None:
    """Write the AsyncAPI 3.0 document: APC_SHARDS shards, and the registered agents when APC_DATABASE_URL is set."""
    document = asyncapi_document(await planned_topology(), BusSettings().amqp_nodes)
    write_output(out, to_json(document) + b"\n")
