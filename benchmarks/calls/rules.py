"""What rules of a team cost: a MESSAGE judged by the orchestrator under ten rules, under none, and one rule alone.

`python -m benchmarks.calls.rules --search MINUTES` looks for the slowest contract that the check lets through,
and the slowest schema and guard: a third of the time each.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from statistics import median, quantiles
from typing import Any
from uuid import UUID, uuid4

from apc_bus.port import Message
from apc_contracts import MessagePayload, Packet, PacketType, ProofBundle, SignalPayload, seal
from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract, check_deployment, task_contract
from apc_contracts.contract.expressions import MAX_COST, Expression, FieldType, Vocabulary
from apc_contracts.contract.overlay import read_overlay, write_out
from apc_contracts.errors import ContractInvalid
from apc_contracts.identity.registry import ANY_SCHEMA, SPEAKS_ALL, Registration
from apc_contracts.packet import PACKET_TYPES, TYPE_OF_PAYLOAD, Actor, Recipient, Routing, Trace
from apc_contracts.payloads.by_type import Payload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.schemas import register_schema
from apc_contracts.vocabulary import ORCHESTRATOR, Channel, DeliveryMode, Right, RunPhase, Signal
from apc_contracts.wire.parsing import read_packet
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.judging.memory import Sessions, ShardMemory
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease
from benchmarks.calls.dear import search_guards, search_schemas
from benchmarks.support.figures import Figure, Figures

TEXT = {"type": "string", "maxLength": 64}
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "finding/1": {"type": "object", "properties": {"service": TEXT}, "required": ["service"]},
    "action/1": {
        "type": "object",
        "properties": {"service": TEXT, "risk": {"enum": ["high", "low"]}, "amount": {"type": "number"}},
        "required": ["service", "risk", "amount"],
    },
}
TEN_RULES = (
    'authors("finding/1", "service") >= 2',
    'cites_role("logs") && cites_role("metrics")',
    'content.risk == "low" || approved_by("lead")',
    'count("acts") < 1000000',
    'sum("spend") + content.amount <= 1000000000',
    '"scribe" in packet.to_roles',
    "local.hour >= 0 && local.hour < 24",
    'sender.role == "fixer"',
    'session.state == "WORKING" && session.age_s < 100000',
    "content.amount >= 0 && content.amount < 10000",
)
HEAD = """
name: measured
extends: task
keep: {finding/1: [service]}
counters:
  acts: {for: action/1, by: sender}
  spend: {for: action/1, add: content.amount}
rules:
"""
RATIO_BAR, P99_BAR_US = 1.3, 200.0
PACKETS = 900
ROUNDS = 9


def measure_rules(figures: Figures) -> None:
    """Judge the same packets with and without rules, in turn; then the rules alone."""
    ratios, times = [], []
    for _ in range(ROUNDS):
        without, with_rules = _judging(task_contract()), _judging(_contract(TEN_RULES))
        ratios.append(with_rules / without)
        times.append(without)
    figures.add(
        Figure(
            "rules_judge", median(ratios), "x of no rules", RATIO_BAR, 1.0, note=f"{median(times) * 1e6:.0f} us without"
        ),
        Figure("rules_one_p99", _slowest_rule(), "us", P99_BAR_US, 1.0, note="p99 of the slowest of ten rules"),
    )


def _contract(rules: tuple[str, ...]) -> Contract:
    body = (
        HEAD + "".join(f"  - {{name: r{at}, for: action/1, require: '{one}'}}\n" for at, one in enumerate(rules))
    ).encode()
    contract = write_out(read_overlay(body), body, task_contract(), SCHEMAS)
    check_deployment(contract)
    return contract


def _judging(contract: Contract) -> float:
    """Return seconds for one packet: parsed, judged, taken into the session and its batch."""
    room = _Room(contract)
    bodies = [room.action(index) for index in range(PACKETS)]
    began = time.process_time()
    for body in bodies:
        room.judge(body)
    return (time.process_time() - began) / PACKETS


class _Room:
    """A session with two findings, and an agent that acts on them."""

    def __init__(self, contract: Contract) -> None:
        everything = frozenset(PacketType)
        schemas = frozenset({ANY_SCHEMA})
        agents = {
            name: Registration(
                name,
                f"agent.{name}",
                name,
                name,
                frozenset({Right.OPERATE}),
                everything,
                speaks=SPEAKS_ALL,
                schemas=schemas,
            )
            for name in ("desk", "logs", "metrics", "fixer", "scribe")
        }
        registered = {name: register_schema(name, document) for name, document in SCHEMAS.items()}
        registry = Registry(ORCHESTRATOR, agents, set(), registered)
        lease = Lease(0, 1, "0.0", ORCHESTRATOR, UUID(int=2))
        ledger = ProtocolLedger(contract.effectiveness)
        self._judge = Judge(ShardMemory(Contracts(contract), lease, 1, "operator", registry, ledger, Sessions()))
        self._batches = 0
        spec = TaskSessionSpec(
            contract=contract.name, members=("logs", "metrics", "fixer", "scribe"), deciders=("scribe",)
        )
        self.judge(self._body("desk", SignalPayload(signal=Signal.START, session=spec), ORCHESTRATOR))
        self.judge(self._body("desk", _message("finding/1", {"service": "api"}), "logs"))
        found = [self._packet(name, _message("finding/1", {"service": "api"}), "fixer") for name in ("logs", "metrics")]
        for packet in found:
            self.judge(seal(packet).body)
        self._evidence = ProofBundle(evidence_refs=tuple(f"packet:{packet.packet_id}" for packet in found))

    def action(self, index: int) -> bytes:
        """Return the body of an action, each of another content."""
        payload = _message("action/1", {"service": "api", "risk": "low", "amount": index % 1000})
        return self._body("fixer", payload, "scribe", proof_bundle=self._evidence)

    def judge(self, body: bytes) -> None:
        """Judge a packet as the orchestrator does."""
        self._batches += 1
        received = read_packet(body)
        user = f"agent.{received.packet.sender.agent_id}"
        kind = received.packet.packet_type.value
        batch = Batch(self._batches, received.packet.created_at)
        self._judge.judge(batch, received, Message(body, str(received.packet.packet_id), type=kind, user_id=user))

    def _body(self, sender: str, payload: Payload, to: str, **fields: Any) -> bytes:
        return seal(self._packet(sender, payload, to, **fields)).body

    @staticmethod
    def _packet(sender: str, payload: Payload, to: str, **fields: Any) -> Packet:
        packet_id, kind = uuid4(), TYPE_OF_PAYLOAD[type(payload)]
        return PACKET_TYPES[kind](
            protocol_version="apc/1.1",
            packet_id=packet_id,
            packet_type=kind,
            channel=Channel.INTER_AGENT,
            run_phase=RunPhase.EXECUTION,
            created_at=datetime.now(UTC),
            sender=Actor(agent_id=sender, role=sender, swarm_id=sender),
            recipients=(Recipient(agent_id=to),),
            trace=Trace(session_id="s", run_id="r", task_id="t", root_packet_id=packet_id, generation=0, step=0),
            routing=Routing(delivery_mode=DeliveryMode.DIRECT, priority=4, ttl_ms=3_600_000, requires_ack=False),
            confidence=0.5,
            symbolic_keys=(),
            payload=payload,
            **fields,
        )


def _message(schema: str, content: Mapping[str, Any]) -> MessagePayload:
    return MessagePayload.model_validate({"schema": schema, "content": content})


def _slowest_rule() -> float:
    """Return the p99 in microseconds of evaluating the slowest of the ten rules, given its values."""
    contract = _contract(TEN_RULES)
    assert contract.team is not None
    values = {
        "content.risk": "low",
        "content.amount": 5.0,
        'authors("finding/1", "service")': 2,
        'cites_role("logs")': True,
        'cites_role("metrics")': True,
        'approved_by("lead")': False,
        'count("acts")': 5,
        'sum("spend")': 10.0,
        "packet.to_roles": ["scribe"],
        "local.hour": 9,
        "sender.role": "fixer",
        "session.state": "WORKING",
        "session.age_s": 4.0,
    }
    worst = 0.0
    for rule in contract.team.rules:
        assert rule.require.holds(values), rule.require.text
        taken = []
        for _ in range(5_000):
            began = time.perf_counter_ns()
            rule.require.holds(values)
            taken.append(time.perf_counter_ns() - began)
        worst = max(worst, quantiles(taken, n=100)[98] / 1000)
    return worst


# The slowest contract that the check lets through.

_WORDS = Vocabulary(
    content={
        "text": FieldType(kind="string"),
        "name": FieldType(kind="string", length=64),
        "texts": FieldType(kind="strings"),
        "tags": FieldType(kind="strings", length=64),
        "lines": FieldType(kind="objects", length=64, fields=("sku", "n")),
        "numbers": FieldType(kind="numbers"),
        "number": FieldType(kind="number"),
    }
)
_VALUES: Mapping[str, Any] = {
    "content.text": "a" * 4_095 + "b",
    "content.name": "a" * 64,
    "content.texts": ["a" * 4_095 + "b"] * 256,
    "content.tags": ["a" * 64] * 256,
    "content.lines": [{"sku": "a" * 64, "n": float(at)} for at in range(256)],
    "content.numbers": [float(at) for at in range(256)],
    "content.number": 5.0,
}
_PIECES: tuple[Callable[[Random], str], ...] = (
    lambda random: f'content.text.matches("{_pattern(random)}")',
    lambda random: f'content.texts.exists(t, t.contains("{random.choice(("b", "ab", "c"))}c"))',
    lambda random: f'content.tags.all(t, t.matches("{_pattern(random)}"))',
    lambda random: 'content.tags.all(t, t.startsWith("a") && t.endsWith("a") && t.contains("aa") && size(t) > 3)',
    lambda random: "content.lines.all(line, line.n >= 0 && line.sku == content.name)",
    lambda random: "size(content.texts.filter(t, t < content.text)) == 0",
    lambda random: "content.numbers.exists(n, n * n / 3.0 - 1.0 > 1000000.0)",
    lambda random: "content.texts == content.texts",
    lambda random: "content.text in content.texts",
    lambda random: 'content.text + content.text != content.text + "a"',
    lambda random: "size(content.text + content.text + content.text) > 3",
    lambda random: "string(content.number) != content.text",
)


def _pattern(random: Random) -> str:
    return "".join(
        random.choice(("a*", ".*", "(a|aa)+", "[a-z]+", "b$", "(.*a)*", "a?", "x")) for _ in range(random.randint(1, 6))
    )


def search(minutes: float) -> None:
    """Print the slowest expressions found, in milliseconds for as many of them as one packet may meet."""
    random, worst = Random(1), (0.0, "", 0)
    end, tried, refused = time.monotonic() + minutes * 60, 0, 0
    while time.monotonic() < end:
        pieces = [random.choice(_PIECES)(random) for _ in range(random.randint(1, 12))]
        text = random.choice((" && ", " || ")).join(pieces)
        if len(text) > 1_000:
            continue
        tried += 1
        expression = Expression(text, "search", _WORDS)
        try:
            expression.check()
        except ContractInvalid:
            refused += 1
            continue
        values = {reading.text: _VALUES[reading.text] for reading in expression.readings}
        best = min(_once(expression, values) for _ in range(3))
        many = max(min(MAX_COST // max(expression.cost, 1), 64), 1)
        if best * many > worst[0]:
            worst = best * many, text, many
            print(f"{best * many * 1000:8.2f} ms = {many} x {best * 1000:.2f} ms: {text[:200]}", flush=True)
    print(
        json.dumps(
            {
                "tried": tried,
                "refused": refused,
                "worst_ms": round(worst[0] * 1000, 2),
                "rules": worst[2],
                "text": worst[1],
            }
        )
    )


def _once(expression: Expression, values: Mapping[str, Any]) -> float:
    began = time.thread_time()
    expression.holds(values)
    return time.thread_time() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.calls.rules", description=__doc__)
    parser.add_argument("--search", type=float, default=0.0, help="minutes to look for the slowest contract")
    if (given := parser.parse_args()).search:
        search(given.search / 3)
        print(json.dumps(search_guards(given.search / 3)))
        print(json.dumps(search_schemas(given.search / 3)))
    else:
        measure_rules(Figures())
