"""Random walks through the incident room under random rules, the same for the same seed."""

import json
from random import Random
from typing import Any
from uuid import uuid4

from apc_contracts import Packet, SignalPayload
from apc_contracts.contract.contract import Contract

from .conftest import Simulation
from .room import Room, contract_of

POOL = (
    'authors("finding/1", "service") >= {n}',
    'authors("finding/1") >= {n}',
    'cited("finding/1") < {m}',
    'cites_role("logs") || cites_swarm("metrics")',
    'cites("logs") || content.risk == "low"',
    'approved_by("lead")',
    'approved_by("lead", 2) || content.cents < 500',
    'content.risk == "low" || approved_by("lead")',
    'count("acts") < {m}',
    'count("risky") < {n}',
    'count("by-recipient") < {m}',
    'sum("paid") + content.cents <= {m}00',
    '"scribe" in packet.to_roles && !("lead" in packet.to_swarms)',
    'packet.type == "MESSAGE" || content.cents < 300',
    "local.hour >= 7 && local.hour < 19",
    "local.weekday <= 5 || content.cents == 0",
    "session.age_s < {m}000",
    "spent.packets < {m}0",
    '!has(content.tags) || content.tags.all(tag, tag.startsWith("t"))',
    'has(content.note) ? content.note.size() < 10 : content.risk == "low"',
    'sender.id == "fixer" || content.cents < 400',
    '!("operate" in sender.rights) && session.round == 1 && session.state == "WORKING"',
    "packet.confidence >= 0.5",
    'effect("refund") == "absent"',
    '10 / content.cents >= 0 || content.risk == "low"',
)
WHENS = ('content.risk == "high"', "content.cents > 100", 'packet.type == "DECISION"', "has(content.note)")
HEAD = """
name: tried
extends: task
zone: Europe/Berlin
keep: {finding/1: [service]}
counters:
  acts: {for: action/1, by: sender}
  risky: {for: action/1, when: 'content.risk == "high"', by: content.service, within: 30m}
  by-recipient: {for: [action/1, finding/1], by: recipient, within: 1h}
  paid: {for: {schema: action/1, type: MESSAGE}, add: content.cents}
rules:
""".replace("by-recipient", "by_recipient")


def contract_with(random: Random, rules: int = 20) -> Contract:
    """Return a contract with that many random rules; most of them can be met."""
    lines = [HEAD]
    for index in range(rules):
        require = random.choice(POOL).format(n=random.choice((1, 1, 2)), m=random.randint(3, 9)).replace("by-r", "by_r")
        when = f", when: '{random.choice(WHENS)}'" if random.random() < 0.6 else ""
        mode = random.choice(("enforce", "enforce", "warn", "observe"))
        reuse = random.choice(("true", "false"))
        rule = f"name: r{index}, for: action/1, require: '{require}', mode: {mode}, reuse: {reuse}{when}"
        lines.append(f"  - {{{rule}}}\n")
    return contract_of("".join(lines))


class RoomWalk:
    """Random acts of the room."""

    def __init__(self, simulation: Simulation, random: Random) -> None:
        self.room = Room(simulation)
        self.random = random
        self.findings: list[Packet] = []
        self.questions: list[Packet] = []

    def step(self) -> None:
        """One random act."""
        acts = (self.find, self.act, self.act, self.act, self.ask, self.answer, self.wait, self.retract)
        self.random.choice(acts)()

    def content(self) -> dict[str, Any]:
        random = self.random
        content: dict[str, Any] = {
            "risk": random.choice(("high", "low")),
            "service": random.choice(("api", "api", "mail")),
            "cents": random.choice((0, 0, 100, 250, 500)),
        }
        if random.random() < 0.2:
            content["note"] = random.choice(("short", "a longer note"))
        if random.random() < 0.2:
            content["tags"] = random.choice((["t1"], ["t1", "x"], []))
        return content

    def find(self) -> None:
        random = self.random
        to = random.choice((("fixer", "helper"), "fixer", "scribe"))
        sent = self.room.message(
            random.choice(("logs", "metrics", "fixer")), "finding/1", {"service": random.choice(("api", "mail"))}, to
        )
        self.findings.append(sent[0])

    def act(self) -> None:
        random = self.random
        known: list[Any] = [*self.findings, *random.choices(("a note", uuid4()), [20, 1])]
        evidence = random.sample(known, min(len(known), random.choice((0, 1, 2, 3))))
        send = random.choice((self.room.action, self.room.decision))
        send(evidence, random.choice(("fixer", "fixer", "helper")), **self.content())

    def ask(self) -> None:
        content, random = self.content(), self.random
        asker, minutes, fields = (
            random.choice(("fixer", "helper")),
            random.choice((5, 60)),
            random.choice((True, False)),
        )
        self.questions.append(self.room.ask(asker, minutes, fields=fields, **content))

    def answer(self) -> None:
        if self.questions:
            question = self.questions[self.random.randrange(len(self.questions))]
            self.room.answer(question, self.random.choice(("ida", "max", "ann")), approves=self.random.random() < 0.8)
            if self.random.random() < 0.7:
                asked = question.payload_as(SignalPayload).question
                assert asked is not None and asked.content is not None
                self.room.action((), question.sender.agent_id, **json.loads(json.dumps(asked.content["content"])))

    def wait(self) -> None:
        self.room.simulation.pass_time(minutes=self.random.choice((1, 7, 20)))

    def retract(self) -> None:
        sent = [*self.findings, *self.questions]
        if sent and self.random.random() < 0.3:
            target = self.random.choice(sent)
            identity = self.room.simulation.session.identity(target.packet_id)
            if identity is not None and not identity.retracted:
                self.room.retract(target)
