"""Run the `tests:` of an overlay: a packet in a small session, judged by the gate's own rules.

Judged are the packet's type in the phase, its content, what it must carry, its evidence and the rules of the team.
Rights, quotas and recipients are not: a test is about the rules. Source: docs/reference/rules.md.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from apc_contracts.admission.case import Case
from apc_contracts.admission.rules.order import RULES
from apc_contracts.admission.rules.phase import content_fits, has_lineage, has_proof, phase_allows_type
from apc_contracts.admission.rules.team import evidence_is_known, keeps_the_rules, ruling_of
from apc_contracts.contract.contract import Contract
from apc_contracts.contract.overlay import JudgedPacket, OverlayApproval, OverlayPacket, OverlayTest
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import keyed_id
from apc_contracts.identity.registry import ANY_SCHEMA, SPEAKS_ALL, Kind, Registration
from apc_contracts.judging.dossier import Approval, about_hash, content_of, packet_values
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.packet import PACKET_PREFIX, Packet
from apc_contracts.schemas import RegisteredSchema, known_schema
from apc_contracts.session.document import SessionDocument
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ORCHESTRATOR, PROTOCOL_1_1, PacketType, RunPhase
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.parsing import ReceivedPacket, read_packet
from apc_contracts.wire.receipts import EffectEntry

_SESSION, _RUN, _TASK, _SWARM = "test", "test", "test", "team"
_JUDGES = (phase_allows_type, content_fits, has_lineage, has_proof, evidence_is_known, keeps_the_rules)
_RULES = tuple(rule for rule in RULES if rule.judge in _JUDGES)
_WORKING = "inter_agent_coordination"
_ENTRIES: Mapping[str, tuple[EffectEntry, ...]] = {
    "absent": (),
    "claimed": (EffectEntry.CLAIMED,),
    "made": (EffectEntry.CLAIMED, EffectEntry.MADE),
    "unknown": (EffectEntry.CLAIMED, EffectEntry.UNKNOWN),
    "settled": (EffectEntry.CLAIMED, EffectEntry.UNKNOWN, EffectEntry.SETTLED),
}
"""What was reported of an effect that stands there."""


@dataclass(frozen=True, slots=True)
class RuleTestResult:
    """What came of one test."""

    name: str
    has_passed: bool
    said: str
    """What the rules said of the packet, in words."""
    failed: frozenset[str] = frozenset()
    """The rules that did not hold."""
    held: frozenset[str] = frozenset()
    """The rules that were for this packet and held."""


def run_tests(
    contract: Contract, tests: Sequence[OverlayTest], schemas: Mapping[str, Mapping[str, Any]]
) -> tuple[RuleTestResult, ...]:
    """Return what the rules of a contract say in each test; `schemas` are the documents of those that are known."""
    known = {schema_id: known_schema(schema_id, dict(document)) for schema_id, document in schemas.items()}
    return tuple(_run(contract, index, test, known) for index, test in enumerate(tests))


def _run(contract: Contract, index: int, test: OverlayTest, schemas: Mapping[str, RegisteredSchema]) -> RuleTestResult:
    name = f"tests[{index}]" if test.name is None else test.name
    try:
        scene = _Scene(contract, test, schemas)
        refusal = _judge(scene.case)
    except (_TestUnusable, PacketRefused) as error:
        return RuleTestResult(name, False, f"the test cannot be run: {error}")
    warned = () if scene.case.team is None else _names(ruling_of(scene.case))
    failed = frozenset([*warned, *([] if refusal is None else [refusal.rule])])
    held = frozenset(_held(contract, scene.case, failed, refusal))
    return RuleTestResult(name, _is_as_said(test, refusal, warned), _words(test, refusal, warned), failed, held)


def _judge(case: Case) -> Refusal | None:
    """Return the first refusal, by the rules for packets of this type."""
    packet_type = case.packet.packet_type
    found = (rule.judge(case) for rule in _RULES if packet_type in rule.packet_types)
    return next((one for one in found if isinstance(one, Refusal)), None)


def _names(ruling: Any) -> tuple[str, ...]:
    """Return the rules that failed and did not refuse."""
    return (*(one.rule for one in ruling.warnings), *ruling.observed)


def _is_as_said(test: OverlayTest, refusal: Refusal | None, warned: Sequence[str]) -> bool:
    if test.refused is not None:
        return refusal is not None and test.refused in (refusal.rule, refusal.code)
    return refusal is None and (test.warned is None or test.warned in warned)


def _words(test: OverlayTest, refusal: Refusal | None, warned: Sequence[str]) -> str:
    wanted = f"refused by {test.refused}" if test.refused else f"warned by {test.warned}" if test.warned else "accepted"
    if refusal is None:
        found = f"accepted, warned by {', '.join(warned)}" if warned else "accepted"
    else:
        read = ", ".join(f"{reading} = {value!r}" for reading, value in (refusal.values or {}).items())
        values = f" ({read})" if read else ""
        by = refusal.rule if refusal.code == "RULE_FAILED" else f"{refusal.code} at {refusal.path}"
        found = f"refused by {by}: {refusal.message.removesuffix('.')}{values}"
    return found if _is_as_said(test, refusal, warned) else f"{found}; the test wants it {wanted}"


def _held(contract: Contract, case: Case, failed: frozenset[str], refusal: Refusal | None) -> Iterator[str]:
    """Yield the rules that were for the packet and held, up to the one that refused it."""
    if contract.team is None or case.team is None:
        return
    schema, _ = content_of(case.packet)
    for rule in contract.team.rules_for(schema, case.packet.packet_type):
        if refusal is not None and refusal.rule == rule.name:
            return
        values = {} if rule.when is None else packet_values(contract.team, case.packet, rule.when)
        is_for = rule.when is None or rule.when.holds(ruling_of(case).values | values)
        if is_for and rule.name not in failed:
            yield rule.name


class _TestUnusable(ValueError):
    """A test that contradicts itself."""


class _Scene:
    """The session of one test, with everything that was accepted before, and the case of its packet."""

    def __init__(self, contract: Contract, test: OverlayTest, schemas: Mapping[str, RegisteredSchema]) -> None:
        self._contract, self._test, self._schemas = contract, test, schemas
        self._registry = dict(self._registrations())
        self._count = 0
        self.session = self._open()
        for packet in test.before:
            self._accept(packet, "before", packet.at or test.at - timedelta(minutes=1))
        cited = [
            self._accept(one, "evidence", one.at or test.at - timedelta(minutes=1), test.packet.from_)
            for one in test.packet.evidence
        ]
        received = self._received(test.packet, test.packet.at or test.at, (), cited)
        self._approve(test.packet, received.packet)
        self.case = Case(received.packet, self.session, self._facts(received, test.packet), contract)

    def _registrations(self) -> Iterator[tuple[str, Registration]]:
        packets = [*self._test.before, *self._test.packet.evidence, self._test.packet]
        roles: dict[str, str] = dict(self._test.agents)
        for packet in packets:
            if packet.role is not None and roles.setdefault(packet.from_, packet.role) != packet.role:
                raise _TestUnusable(f"{packet.from_} has the roles {roles[packet.from_]} and {packet.role}: keep one")
        if any(packet.from_ == ORCHESTRATOR for packet in packets):
            raise _TestUnusable("no rule judges what the orchestrator sends: name an agent")
        swarms = {packet.from_: packet.swarm for packet in packets if packet.swarm is not None}
        named = [*roles, *(one for packet in packets for one in (packet.from_, *packet.to))]
        for agent in dict.fromkeys(named):
            rights = frozenset(right for packet in packets if packet.from_ == agent for right in packet.rights)
            yield agent, _registration(agent, roles.get(agent, agent), swarms.get(agent, _SWARM), rights)
        for approval in self._test.packet.approvals:
            if approval.by in named:
                raise _TestUnusable(f"{approval.by} is an agent of the test: name a person")
            yield approval.by, _registration(approval.by, approval.role, "people", frozenset(), Kind.PERSON)

    def _open(self) -> Session:
        given, contract = self._test.session, self._contract
        machine = contract.machine(_WORKING)
        wanted = self._test.packet.type
        states = [one for one in machine.states if one not in ("CLOSED", "HALTED") and contract.phase_of(one)]
        fitting = [one for one in states if wanted in contract.policy(_phase(contract, one)).packet_types]
        state = given.state or next(iter([*fitting, *states]))
        if state not in states:
            raise _TestUnusable(f"session.state: there is no open state {state}; there are {', '.join(states)}")
        agents = [agent for agent, one in self._registry.items() if one.kind is Kind.AGENT]
        document = SessionDocument(
            session_id=_SESSION,
            run_id=_RUN,
            task_id=_TASK,
            opener=agents[0],
            contract_hash=contract.hash.hex(),
            start_packet_id=keyed_id("test", "start"),
            opened_at=self._test.at - timedelta(seconds=given.age_s),
            swarms={},
            members=agents,
            task_ids=[_TASK],
            generation_limit=0,
            generation_deadline_ms=0,
            state_deadline_ms=86_400_000,
            max_rounds=contract.session.max_rounds,
            veto_window_ms=0,
            budgets={str(name): amount for name, amount in given.budgets.items()},
            state=state,
            run_phase=_phase(contract, state),
            round=given.round,
            spent={str(name): amount for name, amount in given.spent.items()},
        )
        session = Session(document, contract.selection.verified_score_epsilon)
        session.open_dossier(contract.team)
        for key, standing in given.effects.items():
            for entry in _ENTRIES[str(standing)]:
                session.effects.note(UUID(int=0), "test", key, UUID(int=0), entry)
        return session

    def _received(
        self, packet: OverlayPacket, at: datetime, to: Sequence[str], evidence: Sequence[UUID] = ()
    ) -> ReceivedPacket:
        """Return a packet of the test as the gate would read it from its bytes."""
        self._count += 1
        packet_id, sender = str(keyed_id("test", str(self._count))), self._registry[packet.from_]
        document: dict[str, Any] = {
            "protocol_version": PROTOCOL_1_1,
            "packet_id": packet_id,
            "packet_type": packet.type.value,
            "channel": "INTER_AGENT",
            "run_phase": self.session.run_phase.value,
            "created_at": at.isoformat(),
            "sender": {"agent_id": sender.agent_id, "role": sender.role, "swarm_id": sender.swarm_id},
            "recipients": [{"agent_id": one} for one in packet.to or to or (ORCHESTRATOR,)],
            "trace": {"session_id": _SESSION, "run_id": _RUN, "task_id": _TASK, "root_packet_id": packet_id}
            | {"generation": 0, "step": 0},
            "routing": {"delivery_mode": "DIRECT", "priority": 4, "ttl_ms": 60_000, "requires_ack": False},
            "confidence": packet.confidence,
            "symbolic_keys": [],
            "payload": _payload(packet),
        }
        if evidence:
            document["proof_bundle"] = {"evidence_refs": [f"{PACKET_PREFIX}{one}" for one in evidence]}
        return read_packet(canonical_json(document))

    def _accept(self, packet: OverlayPacket, place: str, at: datetime, *to: str) -> UUID:
        """Let the session remember a packet as accepted; it is not judged, but its content must fit."""
        received = self._received(packet, at, to)
        facts = self._facts(received, packet, at)
        fault = content_fits(Case(received.packet, self.session, facts, self._contract))
        if fault is not None:
            raise _TestUnusable(f"{place}: {fault.path}: {fault.message}")
        made, dossier = received.packet, self.session.dossier
        user = facts.user_id
        identity = _identity(received, self.session, packet.retracted)
        if dossier is not None:
            identity.said = dossier.said(made, user)
            dossier.accept(made, user, {}, at)
            dossier.count(made, at)
        self.session.remember(made.packet_id, identity)
        return made.packet_id

    def _approve(self, given: JudgedPacket, packet: Packet) -> None:
        dossier = self.session.dossier
        schema, content = content_of(packet)
        for index, one in enumerate(given.approvals if dossier is not None else ()):
            assert dossier is not None
            question, answer = (self._remembered(what, index, one, given) for what in ("question", "answer"))
            about = about_hash(schema, content if one.content is None else one.content, {})
            user = self._registry[one.by].broker_user
            approval = Approval(
                question, answer, given.from_, one.by, one.role, user, is_approved=one.approved, is_in_time=one.in_time
            )
            dossier.approvals.setdefault(about, []).append(approval)

    def _remembered(self, what: str, index: int, approval: OverlayApproval, given: JudgedPacket) -> UUID:
        """Let the session remember a question or an answer."""
        packet_id = keyed_id("test", what, str(index))
        sender = given.from_ if what == "question" else approval.by
        identity = Identity(
            b"", b"", PacketType.SIGNAL, sender, _SWARM, (), (), None, packet_id, VerdictKind.ACCEPTED, None,
            self.session.run_phase, self.session.round, 0, 0,
        )  # fmt: skip
        self.session.remember(packet_id, identity)
        return packet_id

    def _facts(self, received: ReceivedPacket, packet: OverlayPacket, at: datetime | None = None) -> Facts:
        return Facts(
            now=at or packet.at or self._test.at,
            registry=self._registry,
            user_id=self._registry[packet.from_].broker_user,
            packet_hash=received.packet_hash,
            payload_hash=received.payload_hash,
            schemas=self._schemas,
        )


def _payload(packet: OverlayPacket) -> dict[str, Any]:
    if packet.payload is not None:
        return packet.payload
    data = {"schema": packet.schema_, "content": packet.content}
    decision = {"decision_id": "test", "recommendation": "", "priority_distribution": {}, "next_actions": []}
    return data if packet.type is PacketType.MESSAGE else decision | {"result": data}


def _phase(contract: Contract, state: str) -> RunPhase:
    return contract.phase_of(state) or RunPhase.EXECUTION


def _registration(agent: str, role: str, swarm: str, rights: frozenset[Any], kind: Kind = Kind.AGENT) -> Registration:
    """Return the registration of an agent or a person with its own broker user."""
    return Registration(
        agent,
        f"{kind}.{agent}",
        role,
        swarm,
        rights=rights,
        handles=frozenset(PacketType) if kind is Kind.AGENT else frozenset(),
        schemas=frozenset({ANY_SCHEMA}),
        kind=kind,
        speaks=SPEAKS_ALL,
    )


def _identity(received: ReceivedPacket, session: Session, is_retracted: bool) -> Identity:
    packet = received.packet
    recipients = tuple(one.agent_id for one in packet.recipients)
    return Identity(
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        packet_type=packet.packet_type,
        sender=packet.sender.agent_id,
        swarm_id=packet.sender.swarm_id,
        recipients=recipients,
        addressed=recipients,
        cause=None,
        root=packet.trace.root_packet_id,
        verdict=VerdictKind.ACCEPTED,
        refusal=None,
        run_phase=packet.run_phase,
        round=session.round,
        generation=0,
        step=0,
        retracted=is_retracted,
    )


# Types of contents where no schema is known.


def schemas_of_tests(tests: Iterable[OverlayTest]) -> dict[str, dict[str, Any]]:
    """Return a schema for each that the tests name, with the types of their contents: for rules without a system."""
    contents: dict[str, list[dict[str, Any]]] = {}
    for test in tests:
        for packet in (test.packet, *test.packet.evidence, *test.before):
            if packet.schema_ is not None:
                contents.setdefault(packet.schema_, []).append(packet.content)
    return {schema: _schema_of(values) for schema, values in contents.items()}


_TYPES: Sequence[tuple[type, str]] = ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"))


def _schema_of(values: Sequence[Any]) -> dict[str, Any]:
    """Return a schema that these values fit, as narrow as their types."""
    if values and all(isinstance(one, dict) for one in values):
        names = dict.fromkeys(name for one in values for name in one)
        fields = {name: _schema_of([one[name] for one in values if name in one]) for name in names}
        return {"type": "object", "properties": fields, "required": [n for n in names if all(n in v for v in values)]}
    if values and all(isinstance(one, list) for one in values):
        return {"type": "array", "items": _schema_of([item for one in values for item in one])}
    for kind, name in _TYPES:
        if values and all(isinstance(one, kind) for one in values):
            return {"type": name}
    return {"type": "number"} if values and all(isinstance(one, int | float) for one in values) else {}
