"""An incident room under its own rules, without broker and database: two investigators, a fixer, two leads."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from apc_contracts import DecisionPayload, MessagePayload, Packet, ProofBundle, RetractionPayload, SignalPayload
from apc_contracts.contract.contract import Contract, check_deployment, task_contract
from apc_contracts.contract.overlay import read_overlay, write_out
from apc_contracts.identity.registry import ANY_SCHEMA, SPEAKS_ALL, Kind, Registration
from apc_contracts.judging.verdict import Verdict, VerdictKind
from apc_contracts.payloads.by_type import AnswerOutcome, AnswerSpec, Question, Result
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.schemas import RegisteredSchema, register_schema
from apc_contracts.vocabulary import ORCHESTRATOR, CommitmentLevel, PacketType, Right, Signal

from .conftest import Simulation

TEXT, NUMBER = {"type": "string", "maxLength": 64}, {"type": "number"}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "alert/1": {"type": "object", "properties": {"service": TEXT}, "required": ["service"]},
    "finding/1": {
        "type": "object",
        "properties": {"service": TEXT, "text": TEXT},
        "required": ["service"],
    },
    "action/1": {
        "type": "object",
        "properties": {
            "service": TEXT,
            "risk": {"enum": ["high", "low"]},
            "amount": NUMBER,
            "cents": {"type": "integer"},
            "note": TEXT,
            "tags": {"type": "array", "items": TEXT, "maxItems": 8},
        },
        "required": ["service", "risk", "cents"],
    },
    "outcome/1": {"type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"]},
}
INCIDENT = """
name: incident
extends: task
only: [alert/1, finding/1, action/1, outcome/1]
keep: {finding/1: [service]}
counters:
  risky: {for: action/1, when: 'content.risk == "high"', by: session}
rules:
  - name: two-witnesses
    for: action/1
    require: authors("finding/1", "service") >= 2 && cites_role("logs") && cites_role("metrics")
    say: An action needs a finding of both investigators about its service.
    remedy: Cite both findings as evidence.
  - name: lead-approves-risk
    for: action/1
    when: 'content.risk == "high"'
    require: approved_by("lead")
  - name: one-risky-action
    for: action/1
    when: 'content.risk == "high"'
    require: count("risky") < 1
"""
REGISTERED: Mapping[str, RegisteredSchema] = {
    name: register_schema(name, document) for name, document in SCHEMAS.items()
}
_EVERY = frozenset(PacketType)


def agent(agent_id: str, role: str, *rights: Right, user: str | None = None) -> Registration:
    """Return an agent with its own broker user."""
    schemas = frozenset({ANY_SCHEMA})
    fields = {"rights": frozenset(rights), "handles": _EVERY, "speaks": SPEAKS_ALL, "schemas": schemas}
    return Registration(agent_id, user or f"agent.{agent_id}", role, role, **fields)  # type: ignore[arg-type]


def person(agent_id: str, role: str) -> Registration:
    """Return a person who answers through the user of the console."""
    return Registration(agent_id, "web", role, "people", kind=Kind.PERSON, speaks=SPEAKS_ALL)


def registry() -> dict[str, Registration]:
    """Return the room's registry."""
    everybody = (
        agent("desk", "desk", Right.OPERATE),
        agent("logs", "logs"),
        agent("metrics", "metrics"),
        agent("fixer", "fixer"),
        agent("helper", "fixer"),
        agent("scribe", "scribe"),
        person("ida", "lead"),
        person("max", "lead"),
        person("ann", "clerk"),
        Registration(ORCHESTRATOR, ORCHESTRATOR, ORCHESTRATOR, ORCHESTRATOR, frozenset(Right), _EVERY),
    )
    return {one.agent_id: one for one in everybody}


def contract_of(text: str = INCIDENT, parent: Contract | None = None) -> Contract:
    """Return the contract that an overlay makes, checked."""
    body = text.encode()
    contract = write_out(read_overlay(body), body, parent or task_contract(), SCHEMAS)
    check_deployment(contract)
    return contract


def rules(*declared: str, **others: str) -> Contract:
    """Return a contract with rules for action/1, each given as `require`, named r0, r1, …"""
    lines = ["name: tried", "extends: task", "keep: {finding/1: [service]}"]
    lines += [f"{name}: {text}" for name, text in others.items()]
    lines.append("rules:")
    for index, require in enumerate(declared):
        lines.append(f"  - {{name: r{index}, for: action/1, require: '{require}'}}")
    return contract_of("\n".join(lines))


SUM = {"type": "object", "properties": {"cents": {"type": "integer", "minimum": 0}}, "required": ["cents"]}
"""What a question may ask for."""


class Room:
    """One session of the room, driven by hand; `simulation` may be the gate's own judge."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        if simulation.opened is None:
            members = ("logs", "metrics", "fixer", "helper", "scribe")
            spec = TaskSessionSpec(contract=simulation.contract.name, members=members, deciders=("scribe",))
            start = SignalPayload(signal=Signal.START, session=spec)
            self.accept(self.send("desk", start, ORCHESTRATOR, version="apc/1.1", run_phase="EXECUTION"))
            self.accept(self.message("desk", "alert/1", {"service": "api"}, ("logs", "metrics")))

    def send(self, sender: str, payload: Any, to: Any, **fields: Any) -> tuple[Packet, Verdict]:
        """Send a packet of apc/1.1."""
        return self.simulation.send(sender, payload, to, **({"version": "apc/1.1"} | fields))

    def message(
        self, sender: str, schema: str, content: Mapping[str, Any], to: Any, evidence: Any = (), **fields: Any
    ) -> tuple[Packet, Verdict]:
        """Send a MESSAGE with evidence: packets, ids or texts."""
        return self.send(
            sender,
            MessagePayload.model_validate({"schema": schema, "content": content}),
            to,
            **_proof(evidence),
            **fields,
        )

    def finding(self, author: str = "logs", service: str = "api", to: Any = ("fixer", "helper")) -> Packet:
        """Report a finding; returns the accepted packet."""
        return self.accept(self.message(author, "finding/1", {"service": service}, to))

    def action(self, evidence: Any = (), sender: str = "fixer", **content: Any) -> tuple[Packet, Verdict]:
        """Propose an action."""
        full = {"service": "api", "risk": "low", "cents": 0} | content
        return self.message(sender, "action/1", full, "scribe", evidence)

    def decision(self, evidence: Any = (), sender: str = "fixer", **content: Any) -> tuple[Packet, Verdict]:
        """Propose an action as the result of a DECISION."""
        full = {"service": "api", "risk": "low", "cents": 0} | content
        payload = DecisionPayload(
            decision_id="act",
            recommendation="done",
            priority_distribution={},
            next_actions=(),
            commitment_level=CommitmentLevel.EXECUTING,
            result=Result.model_validate({"schema": "action/1", "content": full}),
        )
        return self.send(sender, payload, "scribe", **_proof(evidence))

    def ask(
        self,
        sender: str = "fixer",
        minutes: int = 60,
        schema: str = "action/1",
        *,
        fields: bool = False,
        **content: Any,
    ) -> Packet:
        """Ask the leads about an action, and with `fields` for a sum; returns the question."""
        about = {"schema": schema, "content": {"service": "api", "risk": "high", "cents": 0} | content}
        payload = SignalPayload(
            signal=Signal.ASK,
            expected_response_by=self.simulation.now + timedelta(minutes=minutes),
            question=Question(text="May I?", content=about, answer_schema=SUM if fields else None),
        )
        return self.accept(self.send(sender, payload, "role:lead"))

    def answer(self, question: Packet, who: str = "ida", *, approves: bool = True) -> tuple[Packet, Verdict]:
        """Answer a question."""
        outcome = AnswerOutcome.APPROVED if approves else AnswerOutcome.DENIED
        seen = self.simulation.session.identities[question.packet_id].payload_hash.hex()
        asked = question.payload_as(SignalPayload).question
        content = {"cents": 1} if approves and asked is not None and asked.answer_schema is not None else None
        said = AnswerSpec(outcome=outcome, seen=seen, content=content)
        payload = SignalPayload(signal=Signal.ANSWER, answer=said)
        return self.send(who, payload, question.sender.agent_id, parent=question)

    def approved(self, who: str = "ida", sender: str = "fixer", **content: Any) -> Packet:
        """Ask and get an approval; returns the ANSWER."""
        return self.accept(self.answer(self.ask(sender, **content), who))

    def retract(self, target: Packet) -> None:
        """Take a packet back, by its sender."""
        payload = RetractionPayload(target_packet_id=target.packet_id, reason="wrong")
        self.accept(self.send(target.sender.agent_id, payload, "scribe"))

    @staticmethod
    def accept(sent: tuple[Packet, Verdict]) -> Packet:
        """Return a packet that was accepted."""
        packet, verdict = sent
        assert verdict.kind is VerdictKind.ACCEPTED, verdict.refusal
        return packet


def _proof(evidence: Any) -> dict[str, Any]:
    refs = tuple(_reference(one) for one in evidence)
    return {"proof_bundle": ProofBundle(evidence_refs=refs)} if refs else {}


def _reference(one: Any) -> str:
    if isinstance(one, Packet):
        return f"packet:{one.packet_id}"
    return f"packet:{one}" if isinstance(one, UUID) else str(one)
