"""Rules for EVIDENCE_UNKNOWN and RULE_FAILED: what a team's own contract asks of a packet.

A packet's rules are judged once; the case keeps the result for the record of the verdict. Every reading is a plain
value: computed from packet and session, or, in a replay, taken from the record where only the registry knew it.
Source: docs/reference/rules.md.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

import msgspec
import orjson

from apc_contracts.admission.case import Case
from apc_contracts.admission.rules.routing import reached
from apc_contracts.claim_check import claimed_places
from apc_contracts.contract.expressions import BUDGETS, Expression, Reading
from apc_contracts.contract.rules import CLAIMED_TEXTS, COUNTER_KEYS, ONLY, VALUES, Plan, Rule, Team
from apc_contracts.identity.registry import Kind
from apc_contracts.judging.dossier import (
    CONVERTED,
    WORDS,
    Approval,
    Dossier,
    at_path,
    content_of,
    equal_kept,
    for_cel,
    is_of_packet,
    kept_of,
    plan_values,
)
from apc_contracts.judging.session_view import Identity, SessionView
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import PACKET_PREFIX, packet_cited
from apc_contracts.payloads.by_type import typed_part, words_beside
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT

EVIDENCE_PATH = "proof_bundle.evidence_refs"
OFFSET = "local.offset_s"
"""Recorded beside `local.…`: the seconds that the contract's zone was ahead of UTC."""
SEPARATE = "agents.separate"
"""Recorded beside `authors(…)`: whether the agents of the session had several broker users."""
MAX_VALUES = 2_048
"""Bytes of what stands beside a verdict."""
MOST_PEOPLE = 16


class TeamRuling(msgspec.Struct):
    """What the rules of a team said of one packet."""

    refusal: Refusal | None = None
    warnings: list[Refusal] = msgspec.field(default_factory=list)
    """Of rules in mode `warn`."""
    observed: list[str] = msgspec.field(default_factory=list)
    """Names of rules in mode `observe` that failed."""
    values: dict[str, Any] = msgspec.field(default_factory=dict)
    """What was read beside the packet's own content."""
    evidence: list[Identity] | None = None
    """The packets in its evidence that count, once they were looked up."""
    is_judged: bool = False


def evidence_is_known(case: Case) -> Refusal | None:
    """Refuse a reference to a packet that this session has not accepted, or that was taken back."""
    bundle, session = case.packet.proof_bundle, case.session
    if case.contract.team is None or bundle is None or session is None:
        return None
    if session.dossier is None:
        recorded = case.facts.evidence
        return None if recorded is None else Refusal("EVIDENCE_UNKNOWN", "evidence_is_known", *recorded)
    counting: dict[int, Identity] = {}
    for index, reference in enumerate(bundle.evidence_refs):
        packet_id = packet_cited(reference)
        if packet_id is None and not reference.lower().startswith(PACKET_PREFIX):
            continue
        identity = None if packet_id is None else session.identity(packet_id)
        if packet_id is None or identity is None or identity.retracted or not session.is_accepted(packet_id):
            path = f"{EVIDENCE_PATH}[{index}]"
            message = f"{reference} {_why_unknown(packet_id, identity)}"
            return Refusal("EVIDENCE_UNKNOWN", "evidence_is_known", path, message)
        # What counts is neither stale nor the sender's own, and was addressed to the sender.
        is_told = identity.sender != case.sender_id and case.sender_id in identity.recipients
        if is_told and not identity.stale and identity.said is not None:
            counting[id(identity)] = identity
    _begun(case).evidence = list(counting.values())
    return None


def keeps_the_rules(case: Case) -> Refusal | None:
    """Refuse a packet that fails a rule of its team in mode `enforce`."""
    return None if case.contract.team is None else ruling_of(case).refusal


def ruling_of(case: Case) -> TeamRuling:
    """Return what the rules of the contract's team say; computed once for a case."""
    ruling = _begun(case)
    if not ruling.is_judged:
        ruling.is_judged = True
        _judge(case, ruling)
    return ruling


def _begun(case: Case) -> TeamRuling:
    ruling: TeamRuling | None = case.team
    if ruling is None:
        ruling = case.team = TeamRuling()
    return ruling


def _judge(case: Case, ruling: TeamRuling) -> None:
    team = case.contract.team
    if team is None or (case.session is None and case.facts.rules is None):
        return
    schema, content = content_of(case.packet)
    places = _claimed_in_content(case)
    ruling.refusal = _not_allowed(case, team, schema) or _is_claimed(case, team, schema, places)
    if ruling.refusal is None:
        plan = team.plan_for(schema, case.packet.packet_type)
        if plan.rules:
            values = plan_values(team, plan, case.packet, schema, content)
            for one in plan.readings if places else ():
                if _reads_claimed(one, places):  # of a rule that only warns or observes
                    values.pop(one.variable, None)
            _judge_rules(case, plan, ruling, values, content)
    ruling.refusal = ruling.refusal or _no_room(case, ruling.values)


def _judge_rules(
    case: Case, plan: Plan, ruling: TeamRuling, values: dict[str, Any], content: Mapping[str, Any]
) -> None:
    """Judge by all rules at once; by each of them only when one has failed.

    Args:
        case: the packet under judgement.
        plan: the rules for it.
        ruling: gets what they say, and what they have read.
        values: what follows from the packet alone, by the names of CEL; gets the others.
        content: of the packet.
    """
    if case.session is None or case.session.dossier is None:
        recorded = case.facts.rules or {}
        if VALUES in recorded:
            ruling.refusal = _too_much(ruling, recorded[VALUES])
            return
        _read_recorded(case, plan, ruling.values, values)
    else:
        given = _Given(case, case.session, case.session.dossier, content, ruling.evidence or [], ruling.values)
        _read(given, plan, values)
    if len(plan.readings) > 8 and len(size := orjson.dumps(ruling.values)) > MAX_VALUES:
        ruling.refusal = _too_much(ruling, len(size))
    elif not plan.whole.holds(values):
        _judge_each(case, plan, ruling, plan.by_text(values))


def _judge_each(case: Case, plan: Plan, ruling: TeamRuling, values: Mapping[str, Any]) -> None:
    """Judge by one rule after the other, by the values of their readings' texts."""
    for rule in plan.rules:
        failure = _failure(case, rule, values)
        if failure is None:
            continue
        if rule.mode == "enforce":
            ruling.refusal = failure
            return
        if rule.mode == "warn":
            ruling.warnings.append(failure)
        else:
            ruling.observed.append(rule.name)


def _not_allowed(case: Case, team: Team, schema: str) -> Refusal | None:
    only = team.file.only
    if only is None or not schema or schema in only:
        return None
    _, path = typed_part(case.packet.payload)
    message = f"{case.contract.name} allows {', '.join(only)}, not {schema}"
    return Refusal("RULE_FAILED", ONLY, f"{path}.schema", message, remedy="send one of these, or extend `only`")


def _claimed_in_content(case: Case) -> list[list[str]]:
    """Return the places in the packet's typed content whose texts are in the artifact store, as words of a path.

    A text of the payload beside it is one too, at no place that a rule can name.
    """
    places = claimed_places(case.packet)
    if not places:
        return places
    start = [*typed_part(case.packet.payload)[1].split("."), "content"]
    inside = [place for place in places if place[: len(start)] == start[: len(place)]]
    is_beside = any(place[:1] == start[:1] and place not in inside for place in places)
    return [place[len(start) :] for place in inside] + ([[""]] if is_beside else [])


def _is_claimed(case: Case, team: Team, schema: str, places: list[list[str]]) -> Refusal | None:
    """Refuse a packet of which a rule or counter would judge the hash of a text, while its recipient gets the text."""
    if not places:
        return None
    kind = case.packet.packet_type
    rules = [one for one in team.rules_for(schema, kind) if one.mode == "enforce"]
    counters = team.counters_for(schema, kind)
    conditions = (*(one.when for one in rules), *(one.when for one in counters))
    expressions = (*(one.require for one in rules), *(when for when in conditions if when is not None))
    names = [one.name for found in expressions for one in found.readings if _reads_claimed(one, places)]
    names += [one.by for one in counters if _is_within(one.by, places)]
    if not names:
        return None
    _, path = typed_part(case.packet.payload)
    message = f"its rules read {names[0]}, and a text of its payload is in the artifact store"
    return Refusal("RULE_FAILED", CLAIMED_TEXTS, f"{path}.content", message, remedy="send the text itself, shortened")


def _reads_claimed(reading: Reading, places: list[list[str]]) -> bool:
    """Return whether a reading takes a hash for a text; people who approve see hashes in place of all texts."""
    return reading.name == "approved_by" or _is_within(reading.name, places)


def _is_within(name: str, places: list[list[str]]) -> bool:
    """Return whether `content.a.b` is, holds or is within one of these places."""
    first, *words = name.split(".")
    return first == "content" and any(all(map(str.__eq__, words, place)) for place in places)


def _no_room(case: Case, noted: dict[str, Any]) -> Refusal | None:
    session = case.session
    if session is None or session.dossier is None:
        name = case.facts.rules.get(COUNTER_KEYS) if case.facts.rules is not None else None
    else:
        name = session.dossier.full_counter(case.packet, case.facts.now)
    if name is None:
        return None
    noted[COUNTER_KEYS] = name
    message = f"the counter {name} has no room for another key in this session"
    remedy = "open another session, or count by fewer keys"
    return Refusal("RULE_FAILED", COUNTER_KEYS, f"team.counters.{name}", message, remedy=remedy)


def _too_much(ruling: TeamRuling, size: int) -> Refusal:
    """Return the refusal of a packet whose rules read more than a verdict has room for; forgets what was read."""
    ruling.values.clear()
    ruling.values[VALUES] = size
    message = f"what its rules read takes {size:,} bytes, {MAX_VALUES:,} are kept with a verdict"
    return Refusal("RULE_FAILED", VALUES, "recipients", message, remedy="send it to fewer roles, or read less in rules")


def _failure(case: Case, rule: Rule, values: Mapping[str, Any]) -> Refusal | None:
    """Return the refusal of one rule; None when it holds or is not for this packet."""
    if rule.when is not None and not rule.when.holds(values):
        # An error in `when` never skips the rule.
        return None if rule.when.fails(values) else _refusal(case, rule, rule.when, values)
    return None if rule.require.holds(values) else _refusal(case, rule, rule.require, values)


def _refusal(case: Case, rule: Rule, failed: Expression, values: Mapping[str, Any]) -> Refusal:
    said = rule.say or f"the rule {rule.name} needs {failed.text}"
    shown = {reading.text: _short(values.get(reading.text)) for reading in failed.readings}
    _, path = typed_part(case.packet.payload)
    return Refusal("RULE_FAILED", rule.name, path, said, requires=failed.text, values=shown, remedy=rule.remedy)


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > 64:
        return value[:63] + "…"
    if isinstance(value, list) and len(value) > 8:
        return [*map(_short, value[:8]), "…"]
    return value


# Readings.


class _Given(msgspec.Struct):
    """What the readers of one packet's rules look at."""

    case: Case
    session: SessionView
    dossier: Dossier
    content: Mapping[str, Any]
    """Of the packet; empty without any."""
    evidence: list[Identity]
    """The packets in the evidence that count, each once; `evidence_is_known` has found them."""
    noted: dict[str, Any]


def _read(given: _Given, plan: Plan, values: dict[str, Any]) -> None:
    """Add what a plan reads beside the packet; notes it for the record."""
    noted = given.noted
    for text, variable, arguments, reader, reading in _readers_of(plan):
        found = reader(given, arguments)
        if found is not None:
            noted[text] = found
            values[variable] = found if reading is None else for_cel(reading, found)


@lru_cache(4096)
def _readers_of(plan: Plan) -> "tuple[tuple[str, str, tuple[Any, ...], _Reader, Reading | None], ...]":
    """Return what does not follow from the packet alone: text, name in CEL, arguments and reader of each reading.

    The last is the reading, if CEL gets another value than the record.
    """
    return tuple(
        (one.text, one.variable, one.arguments, _READERS[one.name], one if one.name in CONVERTED else None)
        for one in plan.readings
        if not is_of_packet(one)
    )


def _read_recorded(case: Case, plan: Plan, noted: dict[str, Any], values: dict[str, Any]) -> None:
    """Add what the record of the verdict has of a plan's readings: all that a replay without a dossier knows."""
    recorded = case.facts.rules
    for reading in plan.readings:
        if is_of_packet(reading):
            continue
        found = None
        if reading.name.startswith("local."):
            found = _local(case, reading.name, noted)
        elif recorded is not None:
            noted |= {name: recorded[name] for name in (SEPARATE, WORDS) if name in recorded}
            found = recorded.get(reading.text)
        if found is not None:
            noted[reading.text] = found
            values[reading.variable] = for_cel(reading, found)


def _local(case: Case, name: str, noted: dict[str, Any]) -> int:
    """Return hour or weekday of the judged time in the contract's zone, by the recorded offset in a replay."""
    recorded, team = case.facts.rules or {}, case.contract.team
    assert team is not None, "a rule of a team is judged"
    now, offset = case.facts.now, recorded.get(OFFSET)
    if offset is None:
        moment = now.astimezone(team.zone)
        offset = int((moment.utcoffset() or timedelta(0)).total_seconds())
    else:
        moment = now + timedelta(seconds=offset) - (now.utcoffset() or timedelta(0))
    noted[OFFSET] = offset
    return moment.hour if name == "local.hour" else moment.isoweekday()


def _why_unknown(packet_id: UUID | None, identity: Identity | None) -> str:
    if packet_id is None:
        return "is no packet id"
    if identity is None:
        return "is no packet of this session"
    if identity.retracted:
        return "was retracted"
    return "was refused" if identity.refusal is not None else "is held: it was not accepted yet"


def _cited(given: _Given, arguments: tuple[Any, ...]) -> int:
    return sum(one.said is not None and one.said.schema == arguments[0] for one in given.evidence)


def _authors(given: _Given, arguments: tuple[Any, ...]) -> int:
    """Return how many different authors there are: by their ids, and by their broker users where these are separate."""
    schema, is_compared = arguments[0], len(arguments) > 1
    index = given.dossier.kept_index(schema, arguments[1]) if is_compared else None
    own = kept_of(at_path(given.content, arguments[1])) if is_compared else None
    authors: dict[str, str] = {}
    for identity in given.evidence:
        said = identity.said
        if said is None or said.schema != schema:
            continue
        if is_compared and (index is None or not equal_kept(said.kept[index], own)):
            continue
        authors[identity.sender] = said.user
    if not _is_separate(given):
        return len(authors)
    return len(set(authors.values()) - {_user_of_sender(given)})


def _user_of_sender(given: _Given) -> str:
    """Return the broker user by which the packet came; of one that was held, only the session knows it."""
    case = given.case
    if case.facts.user_id is not None:
        return case.facts.user_id
    held = given.session.identity(case.packet.packet_id)
    return "" if held is None or held.said is None else held.said.user


def _is_separate(given: _Given) -> bool:
    """Return whether the agents of the session have several broker users: else nothing tells them apart but their ids.

    Only the registry of that time knew; a replay has it from the record.
    """
    noted, recorded = given.noted, given.case.facts.rules
    if SEPARATE not in noted:
        noted[SEPARATE] = _are_users_several(given) if recorded is None else recorded.get(SEPARATE, True)
    is_separate: bool = noted[SEPARATE]
    return is_separate


def _are_users_several(given: _Given) -> bool:
    first: str | None = None
    for user in _users(given):
        if first is not None and user != first:
            return True
        first = user
    return False


def _users(given: _Given) -> Iterator[str]:
    """Yield the broker users that speak for agents of the session, as often as they do."""
    registry = given.case.facts.registry or {}
    for member in given.dossier.members:
        agent = registry.get(member)
        if agent is not None and agent.has_inbox and agent.agent_id != ORCHESTRATOR:
            yield agent.broker_user


def _cites_id(given: _Given, arguments: tuple[Any, ...]) -> bool:
    return any(one.sender == arguments[0] for one in given.evidence)


def _cites_role(given: _Given, arguments: tuple[Any, ...]) -> bool:
    role = arguments[0]
    for one in given.evidence:  # any() over a generator takes three times as long
        if one.said is not None and one.said.role == role:
            return True
    return False


def _cites_swarm(given: _Given, arguments: tuple[Any, ...]) -> bool:
    return any(one.swarm_id == arguments[0] for one in given.evidence)


def _approved_by(given: _Given, arguments: tuple[Any, ...]) -> list[str]:
    """Return the people whose approval of exactly this content counts, sorted."""
    packet, with_words = given.case.packet, _are_words_approved(given)
    approvals = given.dossier.approvals_of(packet, with_words=with_words)
    counting = (one for one in approvals if _counts(given, one, arguments[0]))
    return sorted(
        {one.person for one in counting if not given.dossier.denies_later(packet, one, with_words=with_words)}
    )[:MOST_PEOPLE]


def _are_words_approved(given: _Given) -> bool:
    """Return whether approvals must be of the words beside the packet's content too; notes it.

    In logs of release 0.1.0 they were of the content alone: the record of a verdict says nothing of words there.
    """
    recorded = given.case.facts.rules
    if not words_beside(given.case.packet.payload):
        return False
    if recorded is not None and WORDS not in recorded and any(one.startswith("approved_by(") for one in recorded):
        return False
    given.noted[WORDS] = True
    return True


def _counts(given: _Given, approval: Approval, role: str) -> bool:
    if not approval.is_approved or not approval.is_in_time or approval.used_by is not None or approval.role != role:
        return False
    for packet_id in (approval.question, approval.answer):
        identity = given.session.identity(packet_id)
        if identity is None or identity.retracted or identity.stale:
            return False
    return _is_still_in_role(given, approval, role)


def _is_still_in_role(given: _Given, approval: Approval, role: str) -> bool:
    """Return whether the person has the role now, and answered by a user that speaks for no agent of the session."""
    recorded = given.case.facts.rules
    if recorded is not None:
        # Only the registry of that time knew; the record says who counted. Another contract may ask for others.
        known = [people for reading, people in recorded.items() if reading.startswith(f'approved_by("{role}"')]
        return approval.person in known[0] if known else True
    registry = given.case.facts.registry or {}
    person = registry.get(approval.person)
    if person is None or person.kind is not Kind.PERSON or person.is_revoked or person.role != role:
        return False
    users = set(_users(given))
    # Where one broker user speaks for everybody, users distinguish nobody.
    return len(users) <= 1 or approval.user not in users


def _count(given: _Given, arguments: tuple[Any, ...]) -> int:
    case = given.case
    return int(given.dossier.counted_before(arguments[0], case.packet, given.content, case.facts.now))


def _sum(given: _Given, arguments: tuple[Any, ...]) -> float:
    case = given.case
    return given.dossier.counted_before(arguments[0], case.packet, given.content, case.facts.now)


def _effect(given: _Given, arguments: tuple[Any, ...]) -> str:
    return given.session.effect(arguments[0])


def _state(given: _Given, _: tuple[Any, ...]) -> str:
    return given.session.state


def _round(given: _Given, _: tuple[Any, ...]) -> int:
    return given.session.round


def _age(given: _Given, _: tuple[Any, ...]) -> float:
    return max((given.case.facts.now - given.dossier.opened_at).total_seconds(), 0.0)


def _rights(given: _Given, _: tuple[Any, ...]) -> list[str]:
    sender = given.case.sender
    return [] if sender is None else sorted(right.value for right in sender.rights)


def _to_roles(given: _Given, _: tuple[Any, ...]) -> list[str]:
    return _of_recipients(given, "packet.to_roles", "role")


def _to_swarms(given: _Given, _: tuple[Any, ...]) -> list[str]:
    return _of_recipients(given, "packet.to_swarms", "swarm_id")


def _of_recipients(given: _Given, word: str, name: str) -> list[str]:
    """Return the registered roles or swarms of those whom the packet reaches."""
    facts = given.case.facts
    if facts.rules is not None and word in facts.rules:
        known: list[str] = facts.rules[word]
        return known
    registry = facts.registry or {}
    ids = reached(given.case.packet, given.dossier.members, registry, given.session)
    if len(ids) == 1 and ids[0] in registry and ids[0] != SUBSTRATE_RECIPIENT:
        return [getattr(registry[ids[0]], name)]
    found = {getattr(registry[one], name) for one in ids if one in registry}
    return sorted(found | {SUBSTRATE_RECIPIENT} if SUBSTRATE_RECIPIENT in ids else found)


def _spent(name: str, given: _Given, _: tuple[Any, ...]) -> float:
    return float(given.dossier.spent.get(name, 0))


def _left(name: str, given: _Given, _: tuple[Any, ...]) -> float | None:
    case = given.case
    part = given.session.budget_parts(case.packet.trace.task_id, case.facts.now).get(name)
    return None if part is None else float(part.left)


def _at_local(name: str, given: _Given, _: tuple[Any, ...]) -> int:
    return _local(given.case, name, given.noted)


_Reader = Callable[[_Given, tuple[Any, ...]], Any]
_READERS: Mapping[str, _Reader] = {
    "cited": _cited,
    "authors": _authors,
    "cites": _cites_id,
    "cites_role": _cites_role,
    "cites_swarm": _cites_swarm,
    "approved_by": _approved_by,
    "count": _count,
    "sum": _sum,
    "effect": _effect,
    "session.state": _state,
    "session.round": _round,
    "session.age_s": _age,
    "sender.rights": _rights,
    "packet.to_roles": _to_roles,
    "packet.to_swarms": _to_swarms,
    **{f"spent.{name}": partial(_spent, name) for name in BUDGETS},
    **{f"left.{name}": partial(_left, name) for name in BUDGETS},
    **{name: partial(_at_local, name) for name in ("local.hour", "local.weekday")},
}
"""Every word and function that does not follow from the packet alone."""
