"""What a gate logs about packets: ids, never content. Shard, epoch and batch are bound already."""

from collections.abc import Iterable
from logging import DEBUG

import orjson
import structlog

from apc_bus.port import Delivery
from apc_bus.telemetry import LogIds, packet_ids
from apc_contracts.errors import PacketRefused
from apc_contracts.wire.parsing import parse_packet
from apc_log.batch import ConflictEntry, Entry, PacketEntry

_log = structlog.get_logger("apc_orchestrator")


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
