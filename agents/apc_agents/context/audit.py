"""The record of a compression, and its way into the log.

Source: docs/specification/agents.md section 4; issue 5: "compression is an audited, reversible act".
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from apc_agents.context.compression.projector import FoldedTurn
from apc_agents.context.window.contents import Folding
from apc_agents.context.window.linearity import ResourceClass
from apc_agents.context.window.turns import digest_of
from apc_agents.context.window.window import ContextWindow
from apc_agents.handling.handler_context import HandlerContext
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.vocabulary import Channel, Signal

MAX_FOLDED_PER_PACKET: Final = 500
"""Some 120 kB of metadata: well below the 256 KiB of a packet."""


@dataclass(frozen=True, slots=True)
class FoldRecord:
    """One folded turn: the SHA-256 of the stored turn before, and of its summary where one stands for it."""

    resource_id: str
    how: Folding
    resource_class: ResourceClass
    digest_before: str
    digest_after: str | None

    def to_document(self) -> dict[str, Any]:
        """Return JSON: id, how, class, before, after."""
        document = {
            "id": self.resource_id,
            "how": self.how.value,
            "class": self.resource_class.name,
            "before": self.digest_before,
        }
        return document if self.digest_after is None else document | {"after": self.digest_after}


@dataclass(frozen=True, slots=True)
class CompressionAudit:
    """One compression of one session. `cause`: pressure, requested or dropped."""

    session_id: str
    cause: str
    target_pressure: float | None
    target_met: bool
    tokens_before: int
    tokens_after: int
    digest_before: str
    """Of the whole window."""
    digest_after: str
    folded: tuple[FoldRecord, ...]

    def metadata(self) -> list[dict[str, Any]]:
        """Return the metadata of the packets that tell it, one for each 500 folded turns.

        `{"context": {"event": "compressed", "session", "cause", "target_pressure", "target_met",
        "tokens": {"before", "after"}, "digest": {"before", "after"}, "part", "parts",
        "folded": [{"id", "how", "class", "before", "after"?}, …]}}`
        """
        starts = range(0, max(1, len(self.folded)), MAX_FOLDED_PER_PACKET)
        return [{"context": self._part(number, len(starts), start)} for number, start in enumerate(starts, 1)]

    def _part(self, number: int, count: int, start: int) -> dict[str, Any]:
        return {
            "event": "compressed",
            "session": self.session_id,
            "cause": self.cause,
            "target_pressure": self.target_pressure,
            "target_met": self.target_met,
            "tokens": {"before": self.tokens_before, "after": self.tokens_after},
            "digest": {"before": self.digest_before, "after": self.digest_after},
            "part": number,
            "parts": count,
            "folded": [one.to_document() for one in self.folded[start : start + MAX_FOLDED_PER_PACKET]],
        }


OnCompression = Callable[[CompressionAudit], Awaitable[None]]
"""Told of every compression before its window is used; what it raises undoes the compression."""


def recorded(
    session_id: str,
    cause: str,
    before: ContextWindow,
    after: ContextWindow,
    folded: tuple[FoldedTurn, ...],
    target: float | None = None,
    *,
    target_met: bool = True,
) -> CompressionAudit:
    """Return the record of a compression."""
    return CompressionAudit(
        session_id=session_id,
        cause=cause,
        target_pressure=target,
        target_met=target_met,
        tokens_before=before.total_tokens,
        tokens_after=after.total_tokens,
        digest_before=before.digest,
        digest_after=after.digest,
        folded=tuple(_record(one) for one in folded),
    )


def _record(folded: FoldedTurn) -> FoldRecord:
    after = None if folded.summary is None else folded.summary.digest
    return FoldRecord(folded.turn.resource_id, folded.how, folded.resource_class, folded.digest, after)


def payload_of(metadata: Mapping[str, Any]) -> SignalPayload:
    """Build the payload for this metadata of an audit: its reason holds the SHA-256, without the session's id."""
    told = {name: value for name, value in metadata["context"].items() if name != "session"}
    digest = digest_of(orjson.dumps(told, option=orjson.OPT_SORT_KEYS))
    return SignalPayload(signal=Signal.QUERY, reason=f"context compressed, metadata sha256:{digest}")


def emit_compressions(ctx: HandlerContext) -> OnCompression:
    """Return a callback that sends each compression as an INTRA_AGENT SIGNAL QUERY, so that the log has it.

    The packet never reaches another agent; the gate logs it. `emit` derives its id from the handled packet, so that
    a handler that runs again tells it once. The reason holds the SHA-256 of the metadata, which is no part of the
    payload_hash: a handler that folds something else when it runs again is recorded as a rerun, not taken for a repeat.
    The session's id is left out of it: two sessions that fold the same say the same. Phase and generation are those of
    the handled packet, whatever has begun since.
    """

    async def emit(audit: CompressionAudit) -> None:
        for metadata in audit.metadata():
            await ctx.emit(
                payload_of(metadata),
                to=ctx.agent.agent_id,
                channel=Channel.INTRA_AGENT,
                run_phase=ctx.packet.run_phase,
                generation=ctx.packet.trace.generation,
                metadata=metadata,
            )

    return emit
