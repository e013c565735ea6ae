"""A packet as a message of a conversation, and a message of a conversation in a context object."""

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID, uuid4

from pydantic import ValidationError

from apc_agents.errors import Reject
from apc_agents.memory.conversation import ConversationContext, ConversationMessage, StaleRevision
from apc_agents.memory.store import BaseMemoryStore
from apc_agents.relevance import similarity
from apc_agents.text import EstimatedTokens, ExtractiveSummarizer
from apc_bus.settings import SituationSettings
from apc_contracts.agent import (
    AgentContext,
    ContextMessage,
    InteractionHistory,
    NarrativeState,
    ProcessingDirectives,
    SourceEntity,
    SystemState,
    context_uuid,
)
from apc_contracts.packet import Packet


def message_of(packet: Packet) -> ConversationMessage:
    """Return the packet as a message: its payload as JSON; in the metadata who is meant, and what it is about."""
    recipients = [one.agent_id for one in packet.recipients if one.agent_id is not None]
    return ConversationMessage(
        role=packet.sender.role,
        content=packet.payload.model_dump_json(exclude_unset=True),
        timestamp=packet.created_at,
        metadata={
            "sender_id": packet.sender.agent_id,
            "message_id": str(packet.packet_id),
            "packet_type": packet.packet_type.value,
            "symbolic_keys": list(packet.symbolic_keys),
            "recipients": recipients,
            "targets": [str(context_uuid("agent", one)) for one in recipients],
        },
    )


def context_message(message: ConversationMessage) -> ContextMessage:
    """Return the message as it stands in recent_messages; sender_id = metadata.sender_id, or the role."""
    sender = message.metadata.get("sender_id")
    return ContextMessage(
        sender_id=sender if isinstance(sender, str) else message.role,
        content=message.content,
        timestamp_utc=message.timestamp,
        metadata=dict(message.metadata),
    )


def is_visible(message: ConversationMessage, agent_id: str) -> bool:
    """Return whether an agent of the session has sent or received the message.

    One to nobody in particular is for all.
    """
    recipients = message.metadata.get("recipients")
    if not isinstance(recipients, list) or not recipients:
        return True
    return agent_id in recipients or message.metadata.get("sender_id") == agent_id


# Builds the context object of an invocation, and writes the session's conversation.
#
# Source: docs/reference/conformance/agent-context.md sections 3 and 6 (its AgentOrchestrator);
# docs/specification/agents.md section 2.

MAX_RACES: Final = 20
"""Times that a message is added again because another agent of the session has written meanwhile."""
MAX_FOCUS: Final = 16
PASSED_OVER: Final = "passed_over"
"""In a conversation's metadata: the packets that each agent has not taken, by agent_id."""
MAX_PASSED_OVER: Final = 200
METADATA_KEY: Final = "agent_context"
"""In a packet's metadata: user_profile, narrative_state and processing_directives of the context object."""


class ContextAssembler:
    """The only writer of a session's ConversationContext; what it builds is a snapshot, new each time."""

    def __init__(self, memory: BaseMemoryStore, settings: SituationSettings | None = None) -> None:
        self._memory = memory
        self._settings = settings or SituationSettings()
        self._tokens = EstimatedTokens()
        self._summarizer = ExtractiveSummarizer(self._tokens)

    async def record(self, packet: Packet, participant: str) -> None:
        """Add a packet to its session's conversation, once.

        Raises:
            StaleRevision: others wrote each of 20 times. MemoryStoreError: as the store.
        """
        message = message_of(packet)

        def with_packet(kept: ConversationContext) -> ConversationContext | None:
            if any(one.metadata.get("message_id") == message.metadata["message_id"] for one in kept.messages):
                return None
            grown = kept.with_message(message, participant)
            return grown.shortened(self._settings.kept_messages, self._settings.kept_bytes)

        await self._change(packet, with_packet)

    async def _change(
        self, packet: Packet, change: Callable[[ConversationContext], ConversationContext | None]
    ) -> None:
        session_id = packet.trace.session_id
        for attempt in range(MAX_RACES):
            kept = await self._memory.retrieve_conversation(session_id)
            kept = kept or ConversationContext(session_id=session_id, metadata={"user_id": user_of(packet)}, revision=0)
            changed = change(kept)
            if changed is None:
                return
            try:
                return await self._memory.store_conversation(
                    session_id, str(kept.metadata.get("user_id", user_of(packet))), changed
                )
            except StaleRevision:
                if attempt == MAX_RACES - 1:
                    raise

    async def assemble(
        self, packet: Packet, agent_id: str, *, focus: Sequence[str] = (), anomalies: Sequence[str] = ()
    ) -> AgentContext:
        """Return the situation of an agent that is handed this packet; the packet itself is not in its history.

        Args:
            focus: what the agent cares about in any case; the symbols of the recent messages follow it.
            anomalies: what is wrong in the session or the system right now.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
            MemoryStoreError: as the store.
        """
        trace = packet.trace
        kept = await self._memory.retrieve_conversation(trace.session_id)
        passed_over = {str(packet.packet_id)}
        if kept is not None:
            passed_over.update(kept.metadata.get(PASSED_OVER, {}).get(agent_id, ()))
        said = [
            message
            for message in (kept.own.messages if kept else ())
            if is_visible(message, agent_id) and message.metadata.get("message_id") not in passed_over
        ]
        recent = self._recent(said)
        given = given_context(packet)
        return AgentContext(
            context_id=uuid4(),
            session_id=context_uuid("session", trace.session_id),
            message_id=packet.packet_id,
            request_id=trace.root_packet_id,
            timestamp_utc=datetime.now(UTC),
            source_entity=SourceEntity(id=packet.sender.agent_id, type="agent"),
            target_agent_id=context_uuid("agent", agent_id),
            user_profile=given.user_profile,
            narrative_state=_narrative(packet, given.narrative_state, recent, focus),
            interaction_history=self._history(packet, said, recent),
            system_state=SystemState(current_system_load=system_load(), active_anomalies=tuple(anomalies)),
            processing_directives=(given.processing_directives or ProcessingDirectives()).model_copy(
                update={"priority": packet.routing.priority}
            ),
            custom_data={"apc": _originals(packet, agent_id)},
        )

    async def pass_over(self, packet: Packet, agent_id: str) -> None:
        """Keep a packet that the agent does not take out of its later snapshots. Raises as `record`.

        Nobody else records what was sent to the agent alone: nothing is written then.
        """
        if [one.agent_id for one in packet.recipients] == [agent_id]:
            return

        def without(kept: ConversationContext) -> ConversationContext:
            passed = {**kept.metadata.get(PASSED_OVER, {})}
            passed[agent_id] = [*passed.get(agent_id, ()), str(packet.packet_id)][-MAX_PASSED_OVER:]
            return kept.model_copy(update={"metadata": {**kept.metadata, PASSED_OVER: passed}})

        await self._change(packet, without)

    def _recent(self, said: Sequence[ConversationMessage]) -> list[ConversationMessage]:
        """Return the newest, within count and tokens, in their order."""
        chosen: list[ConversationMessage] = []
        room = self._settings.recent_tokens
        for message in reversed(said[-self._settings.recent_messages :] if self._settings.recent_messages else ()):
            room -= self._tokens.count(message.content)
            if room < 0:
                break
            chosen.append(message)
        return chosen[::-1]

    def _history(
        self, packet: Packet, said: Sequence[ConversationMessage], recent: Sequence[ConversationMessage]
    ) -> InteractionHistory:
        older = said[: len(said) - len(recent)]
        text = "\n".join(f"{context_message(one).sender_id}: {one.content}" for one in older)
        return InteractionHistory(
            recent_messages=tuple(context_message(one) for one in recent),
            previous_exchange_summary=self._summarizer.extract(text, self._settings.summary_tokens) if older else None,
            relevant_message_ids=self._relevant(message_of(packet).content, older),
            full_history_reference=packet.trace.session_id,
        )

    def _relevant(self, content: str, older: Sequence[ConversationMessage]) -> tuple[UUID, ...]:
        """Return the older messages most like this one, the likest first; none that have no word in common."""
        ranked = [(similarity(content, one.content), number, one) for number, one in enumerate(older)]
        ranked.sort(key=lambda item: (-item[0], -item[1]))
        ids = (one.metadata.get("message_id") for likeness, _, one in ranked if likeness > 0)
        return tuple([UUID(one) for one in ids if isinstance(one, str)][: self._settings.relevant_messages])


def system_load() -> str:
    """Return low, medium or high: fewer than 0.7, fewer than 1, or more runnable processes per processor."""
    each = os.getloadavg()[0] / (os.cpu_count() or 1)
    return "low" if each < 0.7 else "medium" if each < 1 else "high"


def given_context(packet: Packet) -> AgentContext:
    """Return what the packet says of its context: user_profile, narrative_state, processing_directives.

    Raises Reject.
    """
    said = (packet.metadata or {}).get(METADATA_KEY, {})
    required = {"context_id": uuid4(), "session_id": uuid4(), "timestamp_utc": packet.created_at}
    try:
        if not isinstance(said, dict):
            raise Reject(f"metadata.{METADATA_KEY} is no object")
        return AgentContext.model_validate(
            {**{name: said[name] for name in said if name in _GIVEN}, **required}, strict=False
        )
    except ValidationError as invalid:
        first = invalid.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Reject(f"metadata.{METADATA_KEY}.{place}: {first['msg']}") from invalid


_GIVEN: Final = ("user_profile", "narrative_state", "processing_directives")


def _narrative(
    packet: Packet, given: NarrativeState | None, recent: Sequence[ConversationMessage], focus: Sequence[str]
) -> NarrativeState:
    """Return task and phase as thread and realm, and the symbols in focus: those of the packet, or the newest."""
    symbols = dict.fromkeys(focus)
    for message in reversed(recent):
        symbols |= dict.fromkeys(message.metadata.get("symbolic_keys", ()))
    ours = NarrativeState(
        current_thread_id=packet.trace.task_id,
        current_realm=packet.run_phase.value,
        symbolic_focus=tuple(symbols)[:MAX_FOCUS],
    )
    return ours.model_copy(update=given.model_dump(exclude_unset=True)) if given else ours


def _originals(packet: Packet, agent_id: str) -> dict[str, Any]:
    trace = packet.trace
    return {
        "agent_id": agent_id,
        "sender": packet.sender.agent_id,
        "session_id": trace.session_id,
        "run_id": trace.run_id,
        "task_id": trace.task_id,
        "packet_id": str(packet.packet_id),
        "root_packet_id": str(trace.root_packet_id),
        "packet_type": packet.packet_type.value,
        "run_phase": packet.run_phase.value,
        "generation": trace.generation,
    }


def user_of(packet: Packet) -> str:
    """Return the user of the conversation: metadata.user_id of the first packet, else its sender."""
    user = (packet.metadata or {}).get("user_id")
    return user if isinstance(user, str) and user else packet.sender.agent_id
