"""Rules for EVIDENCE_UNKNOWN and RULE_FAILED: what a team's own contract asks of a packet.

A packet's rules are judged once; the case keeps the result for the record of the verdict. Every reading is a plain
value: computed from packet and session, or, in a replay, taken from the record where only the registry knew it.
Source: docs/reference/rules.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from apc_contracts.admission.case import Case
from apc_contracts.admission.rules.routing import reached
from apc_contracts.contract.expressions import Expression, Reading
from apc_contracts.contract.rules import Plan, Rule, Team
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.judging.dossier import Approval, Dossier, at_path, content_of, equal_kept, for_cel, packet_values
from apc_contracts.judging.session_view import Identity, SessionView
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import PACKET_PREFIX, packet_named, reference_of
from apc_contracts.payloads.by_type import typed_part
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT

EVIDENCE_PATH = "proof_bundle.evidence_refs"
OFFSET = "local.offset_s"
"""Recorded beside `local.…`: the seconds that the contract's zone was ahead of UTC."""
ONLY = "only"
"""The name of the rule that only the schemas of `only` may be sent."""
SEPARATE = "agents.separate"
"""Recorded beside `authors(…)`: whether the agents of the session had several broker users."""
VALUES = "values"
"""The name of the rule that what rules read fits beside the verdict."""
MAX_VALUES = 2_048
"""Bytes of what stands beside a verdict."""
COUNTER_KEYS = "counter-keys"
"""The name of the rule that a counter has room for another key."""
MOST_PEOPLE = 16


@dataclass(slots=True)
class TeamRuling:
    """What the rules of a team said of one packet."""

    refusal: Refusal | None = None
    warnings: list[Refusal] = field(default_factory=list)
    """Of rules in mode `warn`."""
    observed: list[str] = field(default_factory=list)
    """Names of rules in mode `observe` that failed."""
    values: dict[str, Any] = field(default_factory=dict)
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
    counting: dict[UUID, Identity] = {}
    for index, reference in enumerate(bundle.evidence_refs):
        if not reference.lower().startswith(PACKET_PREFIX):
            continue
        packet_id = _packet_id(reference)
        identity = None if packet_id is None else session.identity(packet_id)
        if packet_id is None or identity is None or identity.retracted or not session.is_accepted(packet_id):
            path = f"{EVIDENCE_PATH}[{index}]"
            message = f"{reference} {_why_unknown(packet_id, identity)}"
            return Refusal("EVIDENCE_UNKNOWN", "evidence_is_known", path, message)
        if _counts_as_evidence(case, identity):
            counting[packet_id] = identity
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
    schema, _ = content_of(case.packet)
    ruling.refusal = _not_allowed(case, team, schema)
    if ruling.refusal is None:
        _judge_rules(case, team, team.plan_for(schema, case.packet.packet_type), ruling)
    ruling.refusal = ruling.refusal or _no_room(case, ruling.values)


def _judge_rules(case: Case, team: Team, plan: Plan, ruling: TeamRuling) -> None:
    """Judge by all rules at once; by each of them only when one has failed."""
    if not plan.rules:
        return
    recorded = case.facts.rules or {}
    if VALUES in recorded and (case.session is None or case.session.dossier is None):
        ruling.refusal = _too_much(ruling, recorded[VALUES])
        return
    values = _read(case, team, plan.readings, ruling.values)
    if len(plan.readings) > 8 and len(size := orjson.dumps(ruling.values)) > MAX_VALUES:
        ruling.refusal = _too_much(ruling, len(size))
        return
    if plan.whole.holds(values):
        return
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


def _read(case: Case, team: Team, readings: tuple[Reading, ...], noted: dict[str, Any]) -> dict[str, Any]:
    """Return the values of readings; notes those that do not follow from the packet alone."""
    values = packet_values(team, case.packet, readings)
    for reading in readings:
        if reading.text in values or reading.is_content:
            continue
        found = _value(case, reading, noted)
        if found is not None:
            noted[reading.text] = found
            values[reading.text] = for_cel(reading, found)
    return values


def _value(case: Case, reading: Reading, noted: dict[str, Any]) -> Any:
    recorded, session = case.facts.rules, case.session
    reader = _READERS.get(reading.name)
    if reader is None and reading.name.startswith("local."):
        return _local(case, reading.name, noted)
    if session is None or session.dossier is None:
        if recorded is not None and SEPARATE in recorded:
            noted[SEPARATE] = recorded[SEPARATE]
        return None if recorded is None else recorded.get(reading.text)
    if reader is not None:
        return reader(case, session, session.dossier, reading.arguments)
    place, _, name = reading.name.partition(".")
    if place == "spent":
        return float(session.dossier.spent.get(name, 0))
    part = session.budget_parts(case.packet.trace.task_id, case.facts.now).get(name)
    return None if part is None else float(part.left)


def _local(case: Case, name: str, noted: dict[str, Any]) -> int:
    """Return hour or weekday of the judged time in the contract's zone, by the recorded offset in a replay."""
    recorded, team = case.facts.rules or {}, case.contract.team
    assert team is not None, "a rule of a team is judged"
    offset = recorded.get(OFFSET)
    if offset is None:
        ahead = case.facts.now.astimezone(team.zone).utcoffset() or timedelta(0)
        offset = int(ahead.total_seconds())
    noted[OFFSET] = offset
    moment = case.facts.now + timedelta(seconds=offset) - (case.facts.now.utcoffset() or timedelta(0))
    return moment.hour if name == "local.hour" else moment.isoweekday()


def counting_evidence(case: Case) -> list[Identity]:
    """Return the packets in the evidence that count, each once; `evidence_is_known` has found them."""
    return _begun(case).evidence or []


def _counts_as_evidence(case: Case, identity: Identity) -> bool:
    """Return whether an accepted packet counts: neither stale nor the sender's own, and addressed to the sender."""
    is_told = identity.sender != case.sender_id and case.sender_id in identity.recipients
    return is_told and not identity.stale and identity.said is not None


def _packet_id(reference: str) -> UUID | None:
    known = reference_of(reference)
    return None if known is None else packet_named(known)


def _why_unknown(packet_id: UUID | None, identity: Identity | None) -> str:
    if packet_id is None:
        return "is no packet id"
    if identity is None:
        return "is no packet of this session"
    if identity.retracted:
        return "was retracted"
    return "was refused" if identity.refusal is not None else "is held: it was not accepted yet"


def _cited(case: Case, _: SessionView, __: Dossier, arguments: tuple[Any, ...]) -> int:
    return sum(one.said is not None and one.said.schema == arguments[0] for one in counting_evidence(case))


def _authors(case: Case, _: SessionView, dossier: Dossier, arguments: tuple[Any, ...]) -> int:
    """Return how many different authors there are: by their ids, and by their broker users where these are separate."""
    schema, content = arguments[0], content_of(case.packet)[1]
    authors: dict[str, str] = {}
    for identity in counting_evidence(case):
        said = identity.said
        if said is None or said.schema != schema:
            continue
        if len(arguments) > 1:
            index = dossier.kept_index(schema, arguments[1])
            if index is None or not equal_kept(said.kept[index], at_path(content, arguments[1])):
                continue
        authors[identity.sender] = said.user
    if not _is_separate(case, dossier):
        return len(authors)
    return len(set(authors.values()) - {case.facts.user_id or ""})


def _is_separate(case: Case, dossier: Dossier) -> bool:
    """Return whether the agents of the session have several broker users: else nothing tells them apart but their ids.

    Only the registry of that time knew; a replay has it from the record.
    """
    noted, recorded = _begun(case).values, case.facts.rules
    if SEPARATE not in noted:
        known = len(_users(case, dossier)) > 1 if recorded is None else recorded.get(SEPARATE, True)
        noted[SEPARATE] = known
    is_separate: bool = noted[SEPARATE]
    return is_separate


def _users(case: Case, dossier: Dossier) -> set[str]:
    """Return the broker users that speak for agents of the session."""
    registry = case.facts.registry or {}
    agents = (registry.get(member) for member in dossier.members)
    return {agent.broker_user for agent in agents if agent is not None and agent.has_inbox and not _is_gate(agent)}


def _is_gate(agent: Registration) -> bool:
    return agent.agent_id == ORCHESTRATOR


def _cites_id(case: Case, _: SessionView, __: Dossier, arguments: tuple[Any, ...]) -> bool:
    return any(one.sender == arguments[0] for one in counting_evidence(case))


def _cites_role(case: Case, _: SessionView, __: Dossier, arguments: tuple[Any, ...]) -> bool:
    found = counting_evidence(case)
    return any(one.said is not None and one.said.role == arguments[0] for one in found)


def _cites_swarm(case: Case, _: SessionView, __: Dossier, arguments: tuple[Any, ...]) -> bool:
    return any(one.swarm_id == arguments[0] for one in counting_evidence(case))


def _approved_by(case: Case, session: SessionView, dossier: Dossier, arguments: tuple[Any, ...]) -> list[str]:
    """Return the people whose approval of exactly this content counts, sorted."""
    role = arguments[0]
    people = {one.person for one in dossier.approvals_of(case.packet) if _counts(case, session, dossier, one, role)}
    return sorted(people)[:MOST_PEOPLE]


def _counts(case: Case, session: SessionView, dossier: Dossier, approval: Approval, role: str) -> bool:
    if not approval.is_approved or not approval.is_in_time or approval.used_by is not None or approval.role != role:
        return False
    for packet_id in (approval.question, approval.answer):
        identity = session.identity(packet_id)
        if identity is None or identity.retracted or identity.stale:
            return False
    return not dossier.denies_later(case.packet, approval) and _is_still_in_role(case, dossier, approval, role)


def _is_still_in_role(case: Case, dossier: Dossier, approval: Approval, role: str) -> bool:
    """Return whether the person has the role now, and answered by a user that speaks for no agent of the session."""
    recorded = case.facts.rules
    if recorded is not None:
        # Only the registry of that time knew; the record says who counted. Another contract may ask for others.
        known = [people for reading, people in recorded.items() if reading.startswith(f'approved_by("{role}"')]
        return approval.person in known[0] if known else True
    registry = case.facts.registry or {}
    person = registry.get(approval.person)
    if person is None or person.kind is not Kind.PERSON or person.is_revoked or person.role != role:
        return False
    users = _users(case, dossier)
    # Where one broker user speaks for everybody, users distinguish nobody.
    return len(users) <= 1 or approval.user not in users


def _count(case: Case, _: SessionView, dossier: Dossier, arguments: tuple[Any, ...]) -> int:
    return int(dossier.counted_before(arguments[0], case.packet, case.facts.now))


def _sum(case: Case, _: SessionView, dossier: Dossier, arguments: tuple[Any, ...]) -> float:
    return dossier.counted_before(arguments[0], case.packet, case.facts.now)


def _effect(_: Case, session: SessionView, __: Dossier, arguments: tuple[Any, ...]) -> str:
    return session.effect(arguments[0])


def _state(_: Case, session: SessionView, __: Dossier, ___: tuple[Any, ...]) -> str:
    return session.state


def _round(_: Case, session: SessionView, __: Dossier, ___: tuple[Any, ...]) -> int:
    return session.round


def _age(case: Case, _: SessionView, dossier: Dossier, __: tuple[Any, ...]) -> float:
    return max((case.facts.now - dossier.opened_at).total_seconds(), 0.0)


def _rights(case: Case, _: SessionView, __: Dossier, ___: tuple[Any, ...]) -> list[str]:
    return [] if case.sender is None else sorted(right.value for right in case.sender.rights)


def _to_roles(case: Case, session: SessionView, dossier: Dossier, _: tuple[Any, ...]) -> list[str]:
    return _of_recipients(case, session, dossier, "packet.to_roles", "role")


def _to_swarms(case: Case, session: SessionView, dossier: Dossier, _: tuple[Any, ...]) -> list[str]:
    return _of_recipients(case, session, dossier, "packet.to_swarms", "swarm_id")


def _of_recipients(case: Case, session: SessionView, dossier: Dossier, word: str, name: str) -> list[str]:
    """Return the registered roles or swarms of those whom the packet reaches."""
    recorded = case.facts.rules
    if recorded is not None and word in recorded:
        known: list[str] = recorded[word]
        return known
    registry = case.facts.registry or {}
    ids = reached(case.packet, dossier.members, registry, session)
    found = {getattr(registry[one], name) for one in ids if one in registry}
    return sorted(found | {SUBSTRATE_RECIPIENT} if SUBSTRATE_RECIPIENT in ids else found)


_Reader = Callable[[Case, SessionView, Dossier, tuple[Any, ...]], Any]
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
}
