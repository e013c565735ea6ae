"""The situation of an agent: its context object, and how much a message concerns it.

Source: docs/reference/agent-context.md.
"""

import os
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from functools import cache
from math import log
from typing import Any, Final
from uuid import UUID, uuid4

import orjson
from pydantic import JsonValue, ValidationError

from apc_agents.agent import Agent
from apc_agents.errors import Reject, StaleRevision, UnknownSession
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.ports import BaseMemoryStore, ConversationContext, ConversationMessage
from apc_bus.settings import RelevanceSettings, SituationSettings
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
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import PacketType
from apc_minds.text import EstimatedTokens, ExtractiveSummarizer, stemmer_of

# Words that say nothing of what an English text is about: they weigh nothing in a comparison.

_ENGLISH: Final = """
a about above after again against all almost along already also although always am among an and another any anybody
anything are around as ask at away back be became because become been before began begin behind being below beside
best better between big both bring but buy by call came can cannot come could day did different do does done down
during each early either else end enough even ever every everybody everything far few find first five for forty found
four from full gave get give go good got great had half has have he her here hers him his hold hour how hundred i if
in into is it its just keep kept know last late later least leave left less let like little long look lost made make
man many may me mean measure might mine minute month more morning most move much must my near need never new next nine
no nobody none nor not nothing now of off often old on once one only open or other our out over own part people place
please put quite reach read really right said same saw say second see seem seven several she should show since six
small so some somebody something soon still stop such take tell ten than that the their them then there these they
thing think third this those though thousand three through time to today together tomorrow too took toward turn twenty
two under until up upon us use very wait want was way we week well went were what when where whether which while who
whole why will with within without word work would write year yes yesterday yet you your
"""


@cache
def common_stems(language: str) -> frozenset[str]:
    """Return the stems of the common words of a language; none where there is no list."""
    return stemmer_of(language).stems(_ENGLISH) if language == "english" else frozenset()


# The Symbolic Resonance Score: how much a message concerns an agent in its situation.
#
# Source: docs/reference/conformance/agent-context.md section 5; docs/specification/agents.md section 2. The formula is
# ours (docs/reference/agent-context.md).

MISS: Final = 0.4
"""What each symbol of the focus that a message touches leaves of its distance."""
_WORD: Final = re.compile(r"\w+")
_OPAQUE: Final = re.compile(r"\b(?:sha256:)?[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,12})*\b")
"""Ids and digests."""


@dataclass(frozen=True, slots=True)
class Resonance:
    """The parts of a score, each in 0..1; what a context does not tell counts 0."""

    symbols: float = 0.0
    archetype: float = 0.0
    fingerprint: float = 0.0
    history: float = 0.0
    directive: float = 0.0

    def score(self, weights: RelevanceSettings) -> float:
        """Return the weighted mean, in 0..1; no part can lower it by growing."""
        shares = (weights.symbols, weights.archetype, weights.fingerprint, weights.history, weights.directive)
        total = sum(shares)
        if total == 0:
            return 0.0
        parts: tuple[float, ...] = astuple(self)
        return min(1.0, sum(share * part for share, part in zip(shares, parts, strict=True)) / total)


def resonance(
    message: ContextMessage,
    context: AgentContext,
    settings: RelevanceSettings,
    *,
    language: str = "english",
    actions: Collection[str] = (),
) -> Resonance:
    """Return the parts of a message's score.

    Its symbols are `metadata.symbolic_keys` and the words of its texts, compared by their stems.

    Args:
        language: of the stems, as APC_LANGUAGE.
        actions: what the agent can do: its tools and capabilities.
    """
    metadata = message.metadata or {}
    keys = _texts(metadata.get("symbolic_keys"))
    texts = texts_of(message.content)
    stems = frozenset[str]().union(*(stems_of(text, language) for text in (*keys, *texts)))
    return Resonance(
        symbols=_symbols(stems, context, language),
        archetype=_archetype(_texts(metadata.get("archetypes")) | keys | distinct_words(" ".join(texts)), context),
        fingerprint=_fingerprint(keys | distinct_words(" ".join(texts)), context),
        history=_history(stems, context, settings.half_life_seconds, language),
        directive=_directive(metadata, context, actions),
    )


def texts_of(content: str | None) -> list[str]:
    """Return what a message says: the texts in the fields of a JSON document without the names of the fields."""
    if not content:
        return []
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return [content]
    return list(_leaves(document)) if isinstance(document, dict | list) else [content]


def stems_of(text: str, language: str) -> frozenset[str]:
    """Return the stems of a text that say what it is about: no common words, ids, digests or numbers."""
    stems = stemmer_of(language).stems(_OPAQUE.sub(" ", text)) - common_stems(language)
    return frozenset(stem for stem in stems if not stem.isdigit())


def similarity(one: str | None, other: str | None, language: str = "english") -> float:
    """Return the common stems over all stems of two messages (Jaccard), 0..1."""
    left, right = (
        frozenset[str]().union(*(stems_of(text, language) for text in texts_of(content))) for content in (one, other)
    )
    return len(left & right) / len(left | right) if left | right else 0.0


def distinct_words(text: str | None) -> frozenset[str]:
    """Return the distinct words, without case."""
    return frozenset(_WORD.findall((text or "").casefold()))


def _leaves(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield document
    elif isinstance(document, dict | list):
        for one in document.values() if isinstance(document, dict) else document:
            yield from _leaves(one)


def _symbols(stems: frozenset[str], context: AgentContext, language: str) -> float:
    """Return 1 - 0.4^n for n symbols of the focus in the message; a phrase counts by the share of its words."""
    narrative = context.narrative_state
    focus = _texts(list(narrative.symbolic_focus)) if narrative and narrative.symbolic_focus else frozenset()
    touched: float = 0.0
    for symbol in focus:
        wanted = stems_of(symbol, language) or stemmer_of(language).stems(symbol)
        touched += len(wanted & stems) / len(wanted) if wanted else 0.0
    return 1.0 - float(MISS**touched)


def _archetype(names: frozenset[str], context: AgentContext) -> float:
    """Return 1 for the primary archetype, 0.5 for the secondary one, times the strength of the alignment."""
    alignment = context.user_profile.archetypal_alignment if context.user_profile else None
    if alignment is None or alignment.alignment_strength is None:
        return 0.0
    if (alignment.primary_archetype or "").casefold() in names:
        return alignment.alignment_strength
    return 0.5 * alignment.alignment_strength if (alignment.secondary_archetype or "").casefold() in names else 0.0


def _fingerprint(symbols: frozenset[str], context: AgentContext) -> float:
    """Return the strongest number that the fingerprint's summary gives to one of the symbols."""
    summary = (context.user_profile.resonance_fingerprint_summary if context.user_profile else None) or {}
    strengths = (
        float(value)
        for key, value in summary.items()
        if key.casefold() in symbols and isinstance(value, int | float) and not isinstance(value, bool)
    )
    return max((min(1.0, max(0.0, value)) for value in strengths), default=0.0)


def _history(stems: frozenset[str], context: AgentContext, half_life: float, language: str) -> float:
    """Return the share of the message's stems that recent messages have, rare ones weighing more, halved by age."""
    history = context.interaction_history
    recent = (history.recent_messages if history else None) or ()
    heard, count = dict[str, float](), Counter[str]()
    for message in recent:
        fresh = 0.5 ** (_age(message.timestamp_utc, context.timestamp_utc) / half_life)
        for stem in frozenset[str]().union(*(stems_of(text, language) for text in texts_of(message.content))):
            heard[stem] = max(heard.get(stem, 0.0), fresh)
            count[stem] += 1
    weights = {stem: log(1 + (len(recent) + 1) / (count[stem] + 1)) for stem in stems}
    total = sum(weights.values())
    return min(1.0, sum(weight * heard.get(stem, 0.0) for stem, weight in weights.items()) / total) if total else 0.0


def _age(then: datetime | None, now: datetime) -> float:
    return max(0.0, (now - (then or datetime.min.replace(tzinfo=UTC))).total_seconds())


def _directive(metadata: Mapping[str, JsonValue], context: AgentContext, actions: Collection[str]) -> float:
    """Return a half for being meant, and a half for being asked to do what the agent can do."""
    target = context.target_agent_id is not None and str(context.target_agent_id) in _texts(metadata.get("targets"))
    directives = context.processing_directives
    asked = directives.requested_action if directives else None
    can = asked is not None and _action(asked) in {_action(one) for one in actions}
    return 0.5 * target + 0.5 * can


def _action(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


def _texts(value: JsonValue) -> frozenset[str]:
    values: Iterable[JsonValue] = value if isinstance(value, list | tuple) else ()
    return frozenset(one.casefold() for one in values if isinstance(one, str))


# A packet as a message of a conversation, and a message of a conversation in a context object.


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

    def heard(self, packet: Packet) -> ContextMessage:
        """Return a packet as a message of its conversation."""
        return context_message(message_of(packet))

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


# Issues session ids. Source: docs/reference/conformance/agent-context.md section 3.


class SessionManager:
    """Begins, finds and ends the sessions whose conversations a memory store keeps."""

    def __init__(self, memory: BaseMemoryStore) -> None:
        self._memory = memory

    async def begin(self, user_id: str) -> str:
        """Return a new session of a user, with an empty conversation; returns its id, a UUID. Raises as the store."""
        session_id = str(uuid4())
        empty = ConversationContext(session_id=session_id, metadata={"user_id": user_id}, revision=0)
        await self._memory.store_conversation(session_id, user_id, empty)
        return session_id

    async def conversation(self, session_id: str) -> ConversationContext:
        """Return the conversation of a session. Raises UnknownSession."""
        conversation = await self._memory.retrieve_conversation(session_id)
        if conversation is None:
            raise UnknownSession(session_id)
        return conversation

    async def end(self, session_id: str) -> None:
        """Forget the session's conversation. Raises UnknownSession."""
        await self.conversation(session_id)
        await self._memory.delete_conversation(session_id)


# An agent that answers messages in their context. Source: docs/reference/conformance/agent-context.md section 1 and
# 5.


class BaseAgent(Agent, ABC):
    """An agent with one method for all that it takes; `evaluate_relevance` comes with every Agent.

    Args:
        handles: the packet types that `process_message` gets.
        min_relevance: as `Agent.on`.
        options: as Agent.
    """

    def __init__(
        self, agent_id: str, *, handles: Iterable[PacketType], min_relevance: float | None = None, **options: Any
    ) -> None:
        super().__init__(agent_id, **options)

        async def process(packet: Packet, ctx: HandlerContext) -> Sequence[Payload]:
            return await self.process_message(context_message(message_of(packet)), await ctx.snapshot())

        for packet_type in handles:
            self.on(packet_type, min_relevance=min_relevance)(process)

    @abstractmethod
    async def process_message(self, message: ContextMessage, context: AgentContext) -> Sequence[Payload]:
        """Return what the agent answers to a message: payloads to its sender, or none."""


__all__ = [
    "BaseAgent",
    "ContextAssembler",
    "RelevanceSettings",
    "Resonance",
    "SessionManager",
    "SituationSettings",
    "context_message",
    "given_context",
    "message_of",
    "resonance",
    "system_load",
]
