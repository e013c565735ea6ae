"""What a session remembers for the rules of its team: who said what, approvals, counters.

All but the counters is in memory and rebuilt from the log; the counters stand in the session's document, because they
do not follow from the last packets. A session under a contract without such rules remembers nothing here.
Source: docs/reference/rules.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from uuid import UUID

import msgspec

from apc_contracts.contract.expressions import Expression, FieldType, Reading
from apc_contracts.contract.rules import Counter, Plan, Rule, Team
from apc_contracts.limits import MAX_SAFE_INTEGER
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import (
    WORDS_BESIDE,
    AnswerOutcome,
    MessagePayload,
    SignalPayload,
    typed_part,
    words_beside,
)
from apc_contracts.payloads.session_signals import ROLE_PREFIX
from apc_contracts.vocabulary import ALL_RECIPIENTS, PacketType, Signal
from apc_contracts.wire.canonical import canonical_json

KEPT_BYTES: Final = 64
"""Of one kept text: longer ones are remembered by their hash, and equal all the same."""
COUNTER_KEYS: Final = 256
"""Keys of all counters of a session together; one sender opens at most a quarter of them."""
BUCKETS: Final = 60
"""A counter's time is counted in so many parts; the oldest counts whole."""

_LARGEST: Final = float(MAX_SAFE_INTEGER)

Scalar = str | int | float | bool | None


class Said(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of one packet: its schema ("" = no typed content), its sender's role and broker user."""

    schema: str
    role: str
    user: str
    kept: tuple[Scalar, ...] = ()
    """The fields that its contract keeps of this schema, in their order there."""


class Approval(msgspec.Struct):
    """A person's answer to a question about one content."""

    question: UUID
    answer: UUID
    asker: str
    person: str
    role: str
    """The person's, when it answered."""
    user: str
    """The broker user by which it answered."""
    is_approved: bool
    is_in_time: bool
    used_by: UUID | None = None
    """The accepted packet that used it up."""


@dataclass(slots=True)
class CounterState:
    """One key of a counter: its whole amount, or the amounts by part of its time."""

    total: float = 0
    parts: dict[str, float] = field(default_factory=dict)
    opened_by: str = ""

    def value(self, counter: Counter, now: datetime) -> float:
        """Return what counts at this time."""
        if counter.within_ms is None:
            return self.total
        oldest = _part(counter, now) - BUCKETS
        return sum(amount for part, amount in self.parts.items() if int(part) >= oldest)

    def is_over(self, counter: Counter, now: datetime) -> bool:
        """Return whether nothing of it counts any more, or ever will."""
        return counter.within_ms is not None and max(map(int, self.parts), default=0) < _part(counter, now) - BUCKETS

    def add(self, counter: Counter, amount: float, now: datetime) -> None:
        """Count an amount, and forget what is too old."""
        if counter.within_ms is None:
            self.total = _bounded(self.total + amount)
            return
        newest = _part(counter, now)
        self.parts = {part: one for part, one in self.parts.items() if int(part) >= newest - BUCKETS}
        self.parts[str(newest)] = _bounded(self.parts.get(str(newest), 0) + amount)


Counters = dict[str, dict[str, CounterState]]
"""Name of the counter -> key -> its state."""


def _bounded(amount: float) -> float:
    """Return an amount that stays finite and, written as JSON, the same: a larger one counts as the largest."""
    return max(-_LARGEST, min(amount, _LARGEST))


def _part(counter: Counter, now: datetime) -> int:
    assert counter.within_ms is not None
    return int(now.timestamp() * 1000 * BUCKETS) // counter.within_ms


class _Asked(msgspec.Struct, frozen=True, gc=False):
    about: bytes
    asker: str
    due_at: datetime


@dataclass(slots=True)
class Dossier:
    """The memory of one session under a contract with rules."""

    team: Team
    opened_at: datetime
    members: frozenset[str]
    """The agents of the session, its opener and the orchestrator."""
    spent: Mapping[str, float]
    """Resource -> what the session has spent, as reported so far: the document's own."""
    counters: Counters
    """The document's own."""
    approvals: dict[bytes, list[Approval]] = field(default_factory=dict)
    """Hash of what they are about (`about_hash`) -> the answers to questions about it, in the order of the log."""
    _asked: dict[UUID, _Asked] = field(default_factory=dict)

    def said(self, packet: Packet, user: str | None) -> Said:
        """Return what is remembered of a packet."""
        schema, content = content_of(packet)
        kept = tuple([kept_of(at_path(content, path)) for path in self.team.kept.get(schema, ())])
        return Said(schema, packet.sender.role, user or "", kept)

    def kept_index(self, schema: str, path: str) -> int | None:
        """Return where a kept field of a schema stands in `Said.kept`."""
        paths = self.team.kept.get(schema, ())
        return paths.index(path) if path in paths else None

    def accept(self, packet: Packet, user: str | None, values: Mapping[str, Any], now: datetime) -> None:
        """Take an accepted packet: questions, answers, approvals that it used, in this order of the log.

        `values` are those that its rules read, as the verdict has them.
        """
        if packet.packet_type is PacketType.SIGNAL:
            self._take_signal(packet, packet.payload_as(SignalPayload), user, now)
        self._use_approvals(packet, values)

    def count(self, packet: Packet, now: datetime) -> None:
        """Count an accepted packet. Not for packets of the log: their counts stand in the document."""
        schema, content = content_of(packet)
        for counter in self.team.counters_for(schema, packet.packet_type):
            if not self._counts(counter, packet):
                continue
            amount = 1 if counter.add is None else at_path(content, counter.add.removeprefix("content."))
            states = self.counters.setdefault(counter.name, {})
            for key in keys_of(counter, packet, content):
                state = states.get(key)
                if state is None:
                    self._drop_old_keys(now)
                    state = states[key] = CounterState(opened_by=packet.sender.agent_id)
                state.add(counter, float(amount or 0), now)

    def _drop_old_keys(self, now: datetime) -> None:
        for name, states in self.counters.items():
            counter = self.team.counter(name)
            for key in [key for key, state in states.items() if state.is_over(counter, now)]:
                del states[key]

    def _counts(self, counter: Counter, packet: Packet) -> bool:
        """Return whether a packet counts. An error in `when` counts: a long field must not get round the counter."""
        when = counter.when
        return when is None or not when.fails(packet_values(self.team, packet, when))

    def counted_before(self, name: str, packet: Packet, content: Mapping[str, Any], now: datetime) -> float:
        """Return what a counter has for a packet's key; for several recipients, or a group, the highest."""
        counter = self.team.counter(name)
        states, keys = self.counters.get(name, {}), keys_of(counter, packet, content)
        if counter.by != "recipient":
            state = states.get(keys[0])
            return 0 if state is None else state.value(counter, now)
        # Whom a group reaches only the registry of that time knew: what it got counts for everybody.
        shared = sum(state.value(counter, now) for key, state in states.items() if _is_group(key))
        is_to_group = any(map(_is_group, keys))
        own = [
            state.value(counter, now)
            for key, state in states.items()
            if not _is_group(key) and (is_to_group or key in keys)
        ]
        return shared + max(own, default=0)

    def full_counter(self, packet: Packet, now: datetime) -> str | None:
        """Return the counter that has no room for a packet's new keys; None when all have."""
        schema, content = content_of(packet)
        new: set[tuple[str, str]] = set()
        for counter in self.team.counters_for(schema, packet.packet_type):
            known = self.counters.get(counter.name, {})
            for key in keys_of(counter, packet, content):
                if key not in known and self._counts(counter, packet):
                    new.add((counter.name, key))
        if not new:
            return None
        states = [
            state
            for name, keys in self.counters.items()
            for state in keys.values()
            if not state.is_over(self.team.counter(name), now)
        ]
        own = sum(state.opened_by == packet.sender.agent_id for state in states)
        has_room = len(states) + len(new) <= COUNTER_KEYS and own + len(new) <= COUNTER_KEYS // 4
        return None if has_room else min(name for name, _ in new)

    def approvals_of(self, packet: Packet, *, with_words: bool = True) -> list[Approval]:
        """Return the answers to the sender's questions about this packet's content, and its words beside."""
        answers = self._answers_about(packet, with_words=with_words)
        return [one for one in answers if one.asker == packet.sender.agent_id]

    def _answers_about(self, packet: Packet, *, with_words: bool) -> list[Approval]:
        if not self.approvals:
            return []
        words = words_beside(packet.payload) if with_words else {}
        return self.approvals.get(about_hash(*content_of(packet), words), [])

    def denies_later(self, packet: Packet, approval: Approval, *, with_words: bool = True) -> bool:
        """Return whether the person denied the same content after this answer, no matter who asked."""
        answers = self._answers_about(packet, with_words=with_words)
        later = answers[next(index for index, one in enumerate(answers) if one is approval) + 1 :]
        return any(one.person == approval.person and not one.is_approved for one in later)

    def use_unread(self, asker: str, packet_id: UUID, values: Mapping[str, Any]) -> None:
        """Use up what an erased packet may have used: the approvals that its sender had of these people."""
        people = {person for reading, found in values.items() if reading.startswith("approved_by(") for person in found}
        for approval in (one for answers in self.approvals.values() for one in answers):
            if approval.asker == asker and approval.person in people and approval.used_by is None:
                approval.used_by = packet_id

    def _take_signal(self, packet: Packet, payload: SignalPayload, user: str | None, now: datetime) -> None:
        if payload.signal is Signal.ASK and payload.question is not None:
            about = about_of(payload.question.content)
            if about is not None and payload.expected_response_by is not None:
                due = payload.expected_response_by
                self._asked[packet.packet_id] = _Asked(about_hash(*about), packet.sender.agent_id, due)
        elif payload.signal is Signal.ANSWER and payload.answer is not None:
            question = packet.trace.parent_packet_id
            asked = None if question is None else self._asked.pop(question, None)
            if asked is None or question is None:
                return
            outcome = payload.answer.outcome
            approval = Approval(
                question=question,
                answer=packet.packet_id,
                asker=asked.asker,
                person=packet.sender.agent_id,
                role=packet.sender.role,
                user=user or "",
                is_approved=outcome is AnswerOutcome.APPROVED,
                is_in_time=now <= asked.due_at,
            )
            self.approvals.setdefault(asked.about, []).append(approval)

    def _use_approvals(self, packet: Packet, values: Mapping[str, Any]) -> None:
        """Use up the approvals that a rule has asked for; `values` are those that its verdict was given by."""
        if not self.approvals or not any(reading.startswith("approved_by(") for reading in values):
            return
        approvals = self.approvals_of(packet, with_words=WORDS in values)
        schema, _ = content_of(packet)
        for rule in self.team.rules_for(schema, packet.packet_type) if approvals else ():
            asked = [one.text for one in rule.readings if one.name == "approved_by"]
            if rule.reuse or not asked or not self._applies(rule, packet, values):
                continue
            people = {person for reading in asked for person in values.get(reading, ())}
            for approval in approvals:
                if approval.person in people and approval.used_by is None:
                    approval.used_by = packet.packet_id

    def _applies(self, rule: Rule, packet: Packet, values: Mapping[str, Any]) -> bool:
        """Return whether a packet meets the rule's `when`, by the values of its verdict."""
        if rule.when is None:
            return True
        found = packet_values(self.team, packet, rule.when)
        for reading in rule.when.readings:
            if reading.text in values:
                found[reading.text] = for_cel(reading, values[reading.text])
        return rule.when.holds(found)


CONVERTED: Final = frozenset({"sum", "approved_by"})
"""The functions whose recorded values are not what an expression gets."""


def for_cel(reading: Reading, found: Any) -> Any:
    """Return a recorded value as its expression gets it: of approvals, whether the people are enough."""
    if reading.name == "sum":
        return int(found) if reading.gives.kind == "integer" else float(found)
    if reading.name == "approved_by":
        return len(found) >= int(reading.arguments[1] if len(reading.arguments) > 1 else 1)
    return found


def content_of(packet: Packet) -> tuple[str, Mapping[str, Any]]:
    """Return schema and content of a packet's typed data; ("", {}) without any."""
    payload = packet.payload
    if type(payload) is MessagePayload:  # isinstance of a model takes microseconds where it says no
        return payload.schema_id, payload.content
    typed, _ = typed_part(payload)
    return ("", {}) if typed is None else (typed.schema_id, typed.content)


WORDS: Final = "packet.words"
"""Recorded beside `approved_by(…)`: the packet has words beside its content, and the approval was of both."""


def about_of(content: Mapping[str, Any] | None) -> tuple[str, Mapping[str, Any], Mapping[str, Any]] | None:
    """Return what a question is about: its data is exactly {schema, content}, and words that stand beside."""
    if content is None or not {"schema", "content"} <= content.keys() <= {"schema", "content"} | WORDS_BESIDE:
        return None
    schema, inner = content["schema"], content["content"]
    words = {name: value for name, value in content.items() if name in WORDS_BESIDE}
    return (schema, inner, words) if isinstance(schema, str) and isinstance(inner, Mapping) else None


def about_hash(schema: str, content: Mapping[str, Any], words: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of RFC 8785 of {schema, content}, with the words beside the content."""
    return sha256(canonical_json({**words, "schema": schema, "content": content})).digest()


def at_path(content: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path; None when it is absent or null."""
    if "." not in path:
        return content.get(path)
    found: Any = content
    for name in path.split("."):
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def keys_of(counter: Counter, packet: Packet, content: Mapping[str, Any]) -> list[str]:
    """Return the keys under which a packet counts: one, or one for each recipient.

    Contents are hashed: the document of a session must not hold what the body of a packet encrypts.
    """
    if counter.by == "session":
        return [""]
    if counter.by == "sender":
        return [packet.sender.agent_id]
    if counter.by == "recipient":
        return sorted({recipient.agent_id for recipient in packet.recipients})
    value = at_path(content, counter.by.removeprefix("content."))
    salted = canonical_json([packet.trace.session_id, counter.name, value])
    return [sha256(salted).hexdigest()[:24]]


def _is_group(recipient: str) -> bool:
    return recipient == ALL_RECIPIENTS or recipient.startswith(ROLE_PREFIX)


def kept_of(value: Any) -> Scalar:
    """Return what is kept of a value of a content: a long text's hash, nothing of a list or an object."""
    if isinstance(value, str):
        # No character has more than four bytes.
        is_short = len(value) <= KEPT_BYTES // 4 or len(value.encode()) <= KEPT_BYTES
        return value if is_short else sha256(value.encode()).hexdigest()
    return value if isinstance(value, int | float) else None


def equal_kept(first: Scalar, second: Scalar) -> bool:
    """Return whether two kept values are equal; an absent one equals nothing."""
    return first is not None and first == second and (type(first) is bool) == (type(second) is bool)


# What follows from a packet alone: its content, itself, its sender.


_Getter = Callable[[Packet, Mapping[str, Any]], Any]


def packet_values(team: Team, packet: Packet, expression: Expression) -> dict[str, Any]:
    """Return the values of those readings that follow from the packet alone, by their texts."""
    schema, content = content_of(packet)
    found = ((reading.text, getter(packet, content)) for reading, getter in _getters(team, schema, expression))
    return {text: value for text, value in found if value is not None}


def plan_values(team: Team, plan: Plan, packet: Packet, schema: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those readings that follow from the packet alone, by their names in CEL."""
    values: dict[str, Any] = {}
    for reading, getter in _getters(team, schema, plan):
        value = getter(packet, content)
        if value is not None:
            values[reading.variable] = value
    return values


@lru_cache(4096)
def _getters(team: Team, schema: str, reader: Plan | Expression) -> tuple[tuple[Reading, _Getter], ...]:
    """Return the readings that follow from a packet of this schema, and how."""
    types = team.types.get(schema, {})
    found = ((reading, _getter(reading, types)) for reading in reader.readings)
    return tuple((reading, getter) for reading, getter in found if getter is not None)


def is_of_packet(reading: Reading) -> bool:
    """Return whether a value follows from the packet alone: nothing else gives it."""
    return reading.is_content or reading.name in _OF_PACKET


def _getter(reading: Reading, types: Mapping[str, FieldType]) -> _Getter | None:
    if reading.name == "has":
        asked = str(reading.arguments[0]).removeprefix("content.")
        return lambda packet, content: at_path(content, asked) is not None
    if not reading.name.startswith("content."):
        return _OF_PACKET.get(reading.name)
    path = reading.name.removeprefix("content.")
    declared = types.get(path)
    if declared is None:
        return None
    if "." in path:
        return lambda packet, content: _typed(at_path(content, path), declared)
    if declared.kind in _SCALARS:
        scalar, length = _SCALARS[declared.kind], declared.length
        return lambda packet, content: scalar(content.get(path), length)
    return lambda packet, content: _typed(content.get(path), declared)


def _typed(value: Any, declared: FieldType) -> Any:
    """Return a value as CEL gets it; None when it is of another type, or longer than its bound."""
    if declared.kind not in _SCALARS:
        if not isinstance(value, list | tuple) or len(value) > declared.items:
            return None
        if declared.kind == "objects":
            typed = [_typed_object(one, declared) for one in value]
        else:
            typed = [_SCALARS[declared.kind.removesuffix("s")](one, declared.length) for one in value]
        return None if any(one is None for one in typed) else typed
    return _SCALARS[declared.kind](value, declared.length)


def _typed_object(value: Any, declared: FieldType) -> dict[str, Any] | None:
    """Return the declared fields of an item, as far as they are plain values."""
    if not isinstance(value, Mapping):
        return None
    fields = {name: value[name] for name in declared.fields if name in value}
    plain = {name: one for name, one in fields.items() if isinstance(one, str | int | float | bool)}
    if any(isinstance(one, str) and len(one) > declared.length for one in plain.values()):
        return None
    return {name: float(one) if type(one) is int and abs(one) >= _EXACT else one for name, one in plain.items()}


def _text(value: Any, length: int) -> str | None:
    return value if isinstance(value, str) and len(value) <= length else None


def _boolean(value: Any, _: int) -> bool | None:
    return value if isinstance(value, bool) else None


def _number(value: Any, _: int) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _integer(value: Any, _: int) -> int | None:
    number = _number(value, 0)
    return None if number is None or number != int(number) or abs(number) >= _EXACT else int(number)


_EXACT = 2**53
_SCALARS: Mapping[str, Callable[[Any, int], Any]] = {
    "string": _text,
    "boolean": _boolean,
    "number": _number,
    "integer": _integer,
}

_OF_PACKET: Mapping[str, _Getter] = {
    "packet.type": lambda packet, _: packet.packet_type.value,
    "packet.schema": lambda packet, _: content_of(packet)[0],
    "packet.id": lambda packet, _: str(packet.packet_id),
    "packet.confidence": lambda packet, _: float(packet.confidence),
    "packet.to": lambda packet, _: sorted({recipient.agent_id for recipient in packet.recipients}),
    "sender.id": lambda packet, _: packet.sender.agent_id,
    "sender.role": lambda packet, _: packet.sender.role,
    "sender.swarm": lambda packet, _: packet.sender.swarm_id,
}
"""Words that follow from the packet; sender's role and swarm are the registered ones, or the packet was refused."""
