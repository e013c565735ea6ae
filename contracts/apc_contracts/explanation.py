"""A session explained in words: where it stands, what it waits for, what would move it; and why it ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from shlex import quote
from typing import Any
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.coordinators import STOP, Coordinator
from apc_contracts.contract.file import TEAM_CODES
from apc_contracts.contract.omissions import omissions
from apc_contracts.judging.verdict import remedy_of
from apc_contracts.session.document import OpenQuestion, SessionDocument, TaskDocument
from apc_contracts.session.movement import COORDINATION, GENERATION_STATES
from apc_contracts.text import numbered
from apc_contracts.vocabulary import ORCHESTRATOR, Right


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a session waits for."""

    what: str
    """`READY of swarm alpha`"""
    moves: str
    """What would end the wait, a whole sentence."""
    whom: tuple[str, ...] = ()
    """Each agent with what is known of it: `reviewer-2, which is registered but has no live worker since 12:04`."""
    until: datetime | None = None
    then: str = ""
    """What happens at `until`."""

    @property
    def sentence(self) -> str:
        """The wait as a sentence, without what would end it."""
        text = f"Waits for {self.what}"
        if self.whom:
            text += f": {'; '.join(self.whom)}"
        if self.until is not None:
            text += f"; deadline {clock(self.until)}"
            if self.then:
                text += f", then {self.then}"
        return f"{text}."


@dataclass(frozen=True, slots=True)
class Explanation:
    """Where a session stands, and everything that it waits for; the first wait is the one to look at first."""

    standing: str
    waits: tuple[Wait, ...] = ()
    remarks: tuple[str, ...] = field(default=())
    """What else matters: dead letters, retries, held packets."""


def clock(time: datetime) -> str:
    """Return date and time to the second, in UTC."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# What an explanation knows beside the session's document.

MISSED = 3
"""Heartbeats that a worker may miss before it counts as gone."""


@dataclass(frozen=True, slots=True)
class AgentPresence:
    """A registered agent, and when the log heard of it last: an emit, a receipt or a HEARTBEAT."""

    is_revoked: bool = False
    last_seen: datetime | None = None
    rights: frozenset[Right] = frozenset()
    swarm_id: str = ""


@dataclass(frozen=True, slots=True)
class OpenDelivery:
    """A delivery that has not ended, or that is a dead letter."""

    packet_id: UUID
    packet_type: str
    recipient: str
    attempt: int
    is_dead: bool = False
    error: str | None = None
    retry_at: datetime | None = None
    """When the next attempt is due; None while the recipient has the packet or should take it."""
    since: datetime | None = None
    """When the packet was routed."""
    is_notice: bool = False
    """A SIGNAL of the orchestrator: a task does not wait for its handler."""


@dataclass(frozen=True, slots=True)
class HeldNote:
    """A packet that is logged and judged later."""

    packet_id: UUID
    packet_type: str
    sender: str


@dataclass(frozen=True, slots=True)
class RefusalCount:
    """How many packets of one sender and type were refused with one code, and by which rule of a team."""

    code: str
    sender: str
    packet_type: str
    packets: int
    rule: str | None = None
    """Of RULE_FAILED."""
    refusal: Mapping[str, Any] | None = None
    """The newest refusal's document."""

    @property
    def words(self) -> str:
        """What a team's rule said to the newest of them, and the remedy."""
        refusal = self.refusal or {}
        remedy = remedy_of(self.code, refusal=refusal).removesuffix(".")
        said = str(refusal.get("message") or "").removesuffix(".")
        return f"{self.packet_type} of {self.sender} ({self.kind}): {said}. Remedy: {remedy}."

    @property
    def kind(self) -> str:
        """The code and the rule, and how often if more than once."""
        times = f", {self.packets} times" if self.packets > 1 else ""
        return f"{self.code}{f' {self.rule}' if self.rule else ''}{times}"


@dataclass(frozen=True, slots=True)
class StaleDecision:
    """A DECISION whose ground was retracted."""

    packet_id: UUID
    sender: str
    ground_id: UUID
    """What it rests on: retracted, or stale itself."""
    ground_type: str
    ground_sender: str
    retraction_id: UUID | None
    """None: the DECISION came after the retraction."""

    @property
    def words(self) -> str:
        """What was retracted in one sentence, and the command that shows what else rests on it."""
        how = "was retracted" if self.retraction_id else "was retracted, or rests on a retracted packet,"
        when = f" (RETRACTION {self.retraction_id})" if self.retraction_id else " before it"
        return (
            f"DECISION {self.packet_id} of {self.sender} is stale: {self.ground_type} {self.ground_id} of "
            f"{self.ground_sender} {how}{when}; `apc packet impact {self.ground_id}` lists what rests on it"
        )


@dataclass(frozen=True, slots=True)
class FailedVerification:
    """A packet whose evidence or artifact failed verification."""

    packet_id: UUID
    packet_type: str
    sender: str
    error: str | None


@dataclass(frozen=True, slots=True)
class RefusedUsage:
    """What an agent reported as spent on a task, of which a part was not charged to any budget."""

    agent_id: str
    task_id: str
    resource: str
    """tokens or cost."""
    reported: float
    refused: float

    @property
    def words(self) -> str:
        """What was reported and refused, in one sentence."""
        unit = "tokens" if self.resource == "tokens" else "of cost"
        return (
            f"{self.agent_id} reported {amount_text(self.reported)} {unit}, of which {amount_text(self.refused)} were "
            f"refused as too large and not charged: task {self.task_id} may have spent more than its budget shows."
        )


def amount_text(amount: float) -> str:
    """Return an amount with at most ten digits and separated thousands."""
    return f"{amount:,.0f}" if amount >= 10_000_000_000 or amount == int(amount) else f"{amount:,.10g}"


@dataclass(frozen=True, slots=True)
class Doubts:
    """Why what came of a session is open to doubt, though it has closed."""

    stale: tuple[StaleDecision, ...] = ()
    failed: tuple[FailedVerification, ...] = ()
    dead: tuple[OpenDelivery, ...] = ()
    usage: tuple[RefusedUsage, ...] = ()
    """What was reported as spent and not charged."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Each doubt in a sentence, at most 5 of a kind."""
        stale = [f"{decision.words}." for decision in self.stale[:MOST_DELIVERIES]]
        failed = [
            f"The verification of {one.packet_type} {one.packet_id} of {one.sender} failed: {one.error or 'no reason'}."
            for one in self.failed[:MOST_DELIVERIES]
        ]
        dead = [
            f"{one.packet_type} {one.packet_id} is a dead letter of {one.recipient}: {one.error or 'no reason'}. "
            f"`apc dead-letter show {one.packet_id}` tells more."
            for one in self.dead[:MOST_DELIVERIES]
        ]
        return (*stale, *failed, *dead, *self.of_usage)

    @property
    def of_usage(self) -> tuple[str, ...]:
        """What was spent beyond what the budget shows, a sentence each, the largest parts first."""
        largest = sorted(self.usage, key=lambda one: -one.refused)
        return tuple(one.words for one in largest[:MOST_DELIVERIES])


UNSETTLED_EFFECTS = frozenset({"claimed", "unknown"})
"""Where an effect stands of which nobody knows yet whether it was made."""


@dataclass(frozen=True, slots=True)
class UnsettledEffect:
    """An effect outside the bus that was begun, and whose end is not in the log."""

    packet_id: UUID
    agent_id: str
    key: str
    state: str

    def words(self, dead: UUID | None = None) -> str:
        """Return the effect in a sentence, and what to do about it; `dead` is the dead letter that waits for that.

        The dead letter is another packet where the handler had waited: the answer with which it went on.
        """
        what = f"The effect {self.key} of {self.agent_id} for packet {self.packet_id}"
        if self.state == "claimed":
            return f"{what} is claimed: {self.agent_id} makes it now, or stopped before it reported how that ended."
        settle = f"`apc effect settle {self.packet_id} {self.agent_id} {quote(self.key)}`"
        then = "" if dead is None else f", then `apc dead-letter requeue {dead}`"
        how = "with `--result JSON` if it has happened, with `--not-made` if it has not"
        return f"{what} is unknown: find out whether it happened, settle it by {settle} {how}{then}."


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The registry, the deliveries and the time, as the log has them."""

    now: datetime
    agents: Mapping[str, AgentPresence]
    deliveries: tuple[OpenDelivery, ...] = ()
    held: tuple[HeldNote, ...] = ()
    doubts: Doubts = field(default_factory=Doubts)
    refusals: tuple[RefusalCount, ...] = ()
    """Of this session, the latest kind first."""
    effects: tuple[UnsettledEffect, ...] = ()
    shared_user: str | None = None
    """The broker user who has published for all agents of the session; None: they have different ones."""
    silence: timedelta = field(default=timedelta(seconds=30))
    """How long a live worker is silent before it sends a HEARTBEAT."""

    def describe(self, agent_id: str) -> str:
        """Return the agent's id and what is known of it."""
        presence = self.agents.get(agent_id)
        if presence is None:
            return f"{agent_id}, which is not registered (`apc agent add {agent_id} …`)"
        if presence.is_revoked:
            return f"{agent_id}, which is revoked (`apc agent add {agent_id} …` registers it again)"
        if presence.last_seen is None:
            return f"{agent_id}, which is registered but never had a worker"
        if not self.is_live(agent_id):
            return f"{agent_id}, which is registered but has no live worker since {clock(presence.last_seen)}"
        return f"{agent_id}, which is live"

    def is_live(self, agent_id: str) -> bool:
        """Return whether the agent is registered and was heard of lately."""
        presence = self.agents.get(agent_id)
        if presence is None or presence.is_revoked or presence.last_seen is None:
            return False
        return self.now - presence.last_seen <= MISSED * self.silence

    def advice(self, agents: tuple[str, ...]) -> str:
        """Return what to do about agents that cannot act; "" when all are live."""
        if any(self._is_unknown(agent) for agent in agents):
            return " Register the agents that are not registered, and start their workers."
        if any(not self.is_live(agent) for agent in agents):
            return " Start the missing workers (`apc worker MODULE:AGENT`): what waits in their inboxes is delivered."
        return ""

    def _is_unknown(self, agent_id: str) -> bool:
        presence = self.agents.get(agent_id)
        return presence is None or presence.is_revoked


# The deliveries that a session waits for, and those that do not move.

WAIT_FOR_DELIVERIES = GENERATION_STATES | {"PROMOTION"}
"""States of the research coordinator that end when deliveries have ended."""
MOST_DELIVERIES = 5
"""Deliveries of each kind that are named one by one."""


def waits_of_deliveries(document: SessionDocument, around: Surroundings) -> list[Wait]:
    """Return the handlers, retries and absent workers that a barrier, the commons or a task wait for."""
    return [_delivery(document, delivery, around) for delivery in _awaited(document, around)[:MOST_DELIVERIES]]


def further_deliveries(document: SessionDocument, around: Surroundings) -> list[str]:
    """Say how many deliveries are open beside those that the waits name, and name those that do not move."""
    more = len(_awaited(document, around)) - MOST_DELIVERIES
    if more > 0:
        how = f"`apc packet trace --session-id {document.session_id} --events` shows what became of each packet"
        return [f"{more} more deliveries are open: {how}."]
    if _waits_for_deliveries(document):
        return []
    stuck = [one for one in _to_agents(around) if one.retry_at is not None or not around.is_live(one.recipient)]
    waits = [_delivery(document, delivery, around) for delivery in stuck[:MOST_DELIVERIES]]
    return [f"On its way: {wait.what}. {wait.moves}" for wait in waits]


def _waits_for_deliveries(document: SessionDocument) -> bool:
    return isinstance(document, TaskDocument) or document.state in WAIT_FOR_DELIVERIES


def _awaited(document: SessionDocument, around: Surroundings) -> list[OpenDelivery]:
    """Return the deliveries that have to end: of a task those first that nobody handles, then the oldest."""
    if not _waits_for_deliveries(document):
        return []
    if isinstance(document, TaskDocument):
        open_ones = [one for one in _to_agents(around) if not one.is_notice]
        return sorted(open_ones, key=lambda one: around.is_live(one.recipient))
    return [one for one in _to_agents(around) if one.recipient not in document.dead_agents]


def _to_agents(around: Surroundings) -> list[OpenDelivery]:
    """Return the open deliveries; what goes to the orchestrator alone is applied there."""
    return [delivery for delivery in around.deliveries if not delivery.is_dead and delivery.recipient != ORCHESTRATOR]


def _delivery(document: SessionDocument, one: OpenDelivery, around: Surroundings) -> Wait:
    handling = f"{one.recipient} to handle {one.packet_type} {one.packet_id}"
    due = document.deadlines.get("generation")
    if one.retry_at is not None and one.retry_at > around.now:
        moves = f"It is delivered again at {clock(one.retry_at)}. The last attempt: {one.error or 'asked for a retry'}."
        return Wait(f"a retry of {handling} (attempt {one.attempt})", moves)
    opened = "" if one.since is None else f", open for {_span(one.since, around.now)}"
    what = f"{handling} (attempt {one.attempt}{opened})"
    moves = "Its handler ends." if around.is_live(one.recipient) else around.advice((one.recipient,)).strip()
    return Wait(what, moves, (_heard_of(one, around),), due, "it is not waited for any more" if due else "")


def _heard_of(one: OpenDelivery, around: Surroundings) -> str:
    """Describe the recipient; of a live one also how long it has been silent, for it may have died since."""
    seen = around.agents[one.recipient].last_seen if around.is_live(one.recipient) else None
    heard = "" if seen is None else f" (last seen {_span(seen, around.now)} ago)"
    return around.describe(one.recipient) + heard


def _span(since: datetime, until: datetime) -> str:
    seconds = max(0, (until - since) // timedelta(seconds=1))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3_600} h"


# Sessions that have ended: what the reason of a halt means.

_REASONS = {
    "STATE_DEADLINE": "the state did not end within state_deadline_ms; give the next session a longer one, or look at "
    "who did not act with `apc packet trace --session-id`",
    "BUDGET_EXHAUSTED": "the session's budget was used up; open another session with a larger one",
    "NO_LIVE_SWARM": "every swarm missed its barriers; start the workers, then open another session",
    "VALIDATION_FAILED": "the validating EVAL failed the promotion gate in the last round; the words behind it are the "
    "metrics that failed",
    "NOTHING_BEATS_BASELINE": "no candidate was better than doing nothing",
    "STALLED": "for a minute no delivery, question or timer was open from which a packet could follow",
    "STOP": "an operator stopped it",
    "CANCEL": "an operator cancelled it",
}


def explain_end(document: SessionDocument, doubts: Doubts) -> Explanation:
    """Return why a CLOSED or HALTED session ended; nothing moves it any more."""
    if document.state == "CLOSED":
        sentences = doubts.sentences
        how = "it ended, but what came of it is open to doubt" if sentences else "it ended as planned"
        return Explanation(
            f"CLOSED in round {document.round}: {how}, and nothing moves it any more",
            remarks=(*sentences, "To go on with the work, open another session with SIGNAL START."),
        )
    reason = document.halt_reason or "no reason recorded"
    meaning = _REASONS.get(reason.split(" ", 1)[0])
    dead = numbered(len(doubts.dead), "dead letter is", "dead letters are")
    discard = f"`apc dead-letter discard --all --session {document.session_id}` gives up what is left"
    letters = (f"{dead} left, and work of a halted session cannot be requeued: {discard}.",) if doubts.dead else ()
    return Explanation(
        f"HALTED: {reason}" + (f": {meaning}" if meaning else ""),
        remarks=(*letters, "Nothing moves a halted session: open another one with SIGNAL START."),
    )


# What each state of a session of the coordinator `task` waits for (docs/explanation/contracts.md).

MOST_NAMED = 5
"""Open questions, and timers, that are named one by one."""
_HALTS = "the session is HALTED"


def task_opening(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return the wait for the opener's first work."""
    opener = (document.opener,)
    moves = f"{document.opener} sends a TASK_IR or a MESSAGE." + around.advice(opener)
    whom = tuple(map(around.describe, opener))
    due = document.deadlines.get("open")
    return [Wait("the opener's TASK_IR or MESSAGE", moves, whom, due, f"{_HALTS} (NOT_STARTED)")]


def task_working(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return the wait for a decider's DONE, and the deadline that comes first."""
    if not isinstance(document, TaskDocument):
        return []
    deciders = tuple(document.work.deciders)
    moves = "A decider sends a DECISION with commitment_level DONE." + around.advice(deciders)
    whom = tuple(map(around.describe, deciders))
    return [Wait("DECISION DONE of a decider", moves, whom, *_first_deadline(document))]


def task_review(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return the wait for the approvals that are missing."""
    if not isinstance(document, TaskDocument):
        return []
    work = document.work
    left = tuple(reviewer for reviewer in work.reviewers if reviewer not in work.approved_by)
    missing = work.approvals - len(work.approved_by)
    what = f"{missing} more {'approval' if missing == 1 else 'approvals'} of the DONE {work.done} by {work.done_by}"
    moves = (
        f"A reviewer sends DECISION APPROVED with {work.done} as parent; a VETO sends the work back"
        f" (round {document.round} of {document.max_rounds})." + around.advice(left)
    )
    return [Wait(what, moves, tuple(map(around.describe, left)), *_first_deadline(document))]


def waits_of_handlers(document: SessionDocument, around: Surroundings) -> list[Wait]:
    """Return the questions, requests and timers that are open, the one that is due first first."""
    if not isinstance(document, TaskDocument):
        return []
    asked = sorted(document.work.questions.items(), key=lambda one: one[1].due_at)
    waits = [_question(packet_id, question, around) for packet_id, question in asked[:MOST_NAMED]]
    for wake in sorted(document.work.wakes.values(), key=lambda one: one.due_at)[:MOST_NAMED]:
        then = f"the gate sends it to {wake.agent}"
        waits.append(Wait(f"the timer {wake.key} of {wake.agent}", "Its time comes.", (), wake.due_at, then))
    return waits


def _question(packet_id: UUID, question: OpenQuestion, around: Surroundings) -> Wait:
    then = f"{question.asker} is told that nobody answered"
    if question.returns:
        what = f"the answer to request {packet_id} of {question.asker}, with a result of {question.returns}"
        moves = "The handler of the asked agent ends." + around.advice(tuple(question.may_answer))
        return Wait(what, moves, tuple(map(around.describe, question.may_answer)), question.due_at, then)
    what = f"the answer to question {packet_id} of {question.asker}"
    moves = f"One of them answers: `apc approval approve {packet_id}` or `apc approval deny {packet_id}`."
    return Wait(what, moves, tuple(question.may_answer), question.due_at, then)


def _first_deadline(document: SessionDocument) -> tuple[datetime | None, str]:
    known = {kind: document.deadlines[kind] for kind in ("stall", "deadline") if kind in document.deadlines}
    if not known:
        return None, ""
    kind = min(known, key=lambda one: known[one])
    return known[kind], f"{_HALTS} ({'STALLED: nothing is open' if kind == 'stall' else 'DEADLINE'})"


# What each state of a session waits for (docs/specification/contract.md section 10, Events).

StateRule = Callable[[SessionDocument, Surroundings, Contract], list[Wait]]


def waits_of_state(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return what the state of a running session waits for."""
    rule = RULES.get(contract.coordinator, {}).get(document.state, _any_event)
    return rule(document, around, contract)


def _any_event(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Name the events of the contract that leave the state, for a coordinator without rules here."""
    events = [one for one in contract.machine(COORDINATION).events(document.state) if one != STOP]
    due = document.deadlines.get("state")
    moves = "`apc contract diagram inter_agent_coordination` shows where each of them leads."
    return [Wait(f"one of the events {', '.join(events)}", moves, (), due, "the session is HALTED")]


def _live_swarms(document: SessionDocument) -> list[str]:
    return sorted(swarm for swarm in document.swarms if swarm not in document.dead_swarms)


def _session_open(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    due = document.deadlines.get("state")
    then = "the session is HALTED (STATE_DEADLINE)"
    missing = sorted(swarm for swarm in document.swarms if swarm not in document.briefs)
    if missing:
        opener = (document.opener,)
        what = f"a TASK_IR (research brief) to {_names('swarm', missing)}"
        moves = f"A member, as a rule {document.opener}, sends a TASK_IR to an agent of each of these swarms."
        return [Wait(what, moves + around.advice(opener), _described(opener, around), due, then)]
    alike = _alike(document, contract)
    if alike:
        what = f"research briefs that differ: those of {alike[0]} and {alike[1]} share more than half of their keys"
        return [Wait(what, f"Send {alike[0]} or {alike[1]} a TASK_IR with other symbolic_keys.", (), due, then)]
    return []


def _alike(document: SessionDocument, contract: Contract) -> tuple[str, str] | None:
    for (one, keys), (other, others) in combinations(sorted(document.briefs.items()), 2):
        shared = len(set(keys) & set(others))
        if shared > contract.session.brief_overlap_limit * min(len(set(keys)), len(set(others))):
            return one, other
    return None


def _research(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    current = document.round_state
    missing = [swarm for swarm in _live_swarms(document) if swarm not in current.ready]
    then = "it goes on without them" if current.ready else "nothing yet: one swarm at least must be ready"
    return [
        Wait(
            f"READY (SIGNAL SYNC of generation 0 to {ORCHESTRATOR}) of swarm {swarm}",
            f"Any agent of {swarm} sends SIGNAL SYNC to {ORCHESTRATOR}." + around.advice(_of(document, swarm)),
            _described(_of(document, swarm), around),
            document.deadlines.get("generation"),
            then,
        )
        for swarm in missing
    ]


def _generations(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    current, due = document.round_state, document.deadlines.get("generation")
    place = f"the barrier of generation {document.generation}"
    waits = [
        Wait(
            f"an EVAL of swarm {swarm} for {place}",
            f"Any agent of {swarm} sends an EVAL with generation {document.generation}."
            + around.advice(_of(document, swarm)),
            _described(_of(document, swarm), around),
            due,
            "the barrier closes without it",
        )
        for swarm in _live_swarms(document)
        if swarm not in current.evaluated
    ]
    if not waits and document.verifying == 0 and not _blocking(document, around):
        waits.append(Wait(place, "It closes with the next packet, receipt or timer.", (), due, "it closes"))
    return waits


def _arbitration(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    arbitration, due = document.round_state.arbitration, document.deadlines.get("veto")
    if arbitration is None:
        return []
    if arbitration.is_vetoed and not arbitration.is_overridden:
        deciders = _with_right(Right.DECIDE, around)
        moves = "A DECISION by right `decide`, with the VETO as parent, overrides it; else the winner is struck."
        return [
            Wait("an override of the VETO", moves, _described(deciders, around), due, "the next best is arbitrated")
        ]
    moves = "Nobody has to act: without a VETO the orchestrator approves the winner when the window ends."
    winner = f"{arbitration.candidate.swarm_id} (EVAL {arbitration.winner})"
    return [Wait(f"the end of the veto window for the winner {winner}", moves, (), due, "the winner is approved")]


def _execution(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    execution, winner = document.round_state.execution, document.round_state.winner
    if winner is None:
        return []
    agents = _of(document, winner.swarm_id)
    what = "the ARTIFACT that it builds" if execution.artifact is None else f"its EVAL of ARTIFACT {execution.artifact}"
    moves = f"An agent of {winner.swarm_id} sends it, with run_phase EXECUTION." + around.advice(agents)
    return [_until_state(document, f"the winner {winner.swarm_id}: {what}", moves, _described(agents, around))]


def _validation(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    execution, winner = document.round_state.execution, document.round_state.winner
    if execution.judged_by is not None:
        moves = "The gate reads the ARTIFACT's bytes; look at the artifact store and `apc doctor` if it takes long."
        return [_until_state(document, f"the verification of ARTIFACT {execution.artifact}", moves, ())]
    validators = _with_right(Right.VALIDATE, around)
    others = tuple(one for one in validators if winner is None or around.agents[one].swarm_id != winner.swarm_id)
    moves = "An agent with right `validate`, of another swarm than the winner's, sends it with the ARTIFACT as parent."
    if not others:
        moves += " No such agent is registered: `apc agent add ID … --right validate`."
    what = f"a validating EVAL of ARTIFACT {execution.artifact}"
    return [_until_state(document, what, moves + around.advice(others), _described(others, around))]


def _promotion(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    due = document.deadlines.get("generation")
    moves = "The orchestrator sends DECISION DONE when every delivery to a live agent has ended."
    return [Wait("the deliveries of the promoted PROTOCOL", moves, (), due, "it is committed all the same")]


def _until_state(document: SessionDocument, what: str, moves: str, whom: tuple[str, ...]) -> Wait:
    return Wait(what, moves, whom, document.deadlines.get("state"), "the session is HALTED (STATE_DEADLINE)")


def _blocking(document: SessionDocument, around: Surroundings) -> bool:
    return any(not one.is_dead and one.recipient not in document.dead_agents for one in around.deliveries)


def _of(document: SessionDocument, swarm: str) -> tuple[str, ...]:
    return tuple(document.swarms.get(swarm, ()))


def _with_right(right: Right, around: Surroundings) -> tuple[str, ...]:
    return tuple(
        name
        for name, agent in around.agents.items()
        if right in agent.rights and not agent.is_revoked and name != ORCHESTRATOR
    )


def _described(agents: tuple[str, ...], around: Surroundings) -> tuple[str, ...]:
    return tuple(around.describe(agent) for agent in agents)


def _names(kind: str, names: list[str]) -> str:
    return f"{kind} {names[0]}" if len(names) == 1 else f"{kind}s {', '.join(names)}"


RESEARCH_RULES: Mapping[str, StateRule] = {
    "SESSION_OPEN": _session_open,
    "DIFFERENTIATED_RESEARCH": _research,
    "INDEPENDENT_DISCOVERY": _generations,
    "SELECTIVE_TRANSFER": _generations,
    "CONTROLLED_CONVERGENCE": _generations,
    "ARBITRATION": _arbitration,
    "EXECUTION": _execution,
    "VALIDATION": _validation,
    "PROMOTION": _promotion,
}
"""State of machine inter_agent_coordination -> what it waits for; a test compares the names with the contract."""
TASK_RULES: Mapping[str, StateRule] = {
    "SESSION_OPEN": task_opening,
    "WORKING": task_working,
    "REVIEW": task_review,
}
RULES: Mapping[Coordinator, Mapping[str, StateRule]] = {
    Coordinator.RESEARCH: RESEARCH_RULES,
    Coordinator.TASK: TASK_RULES,
}


MOST_REFUSALS = 5
"""Kinds of refusals that are named one by one."""


def explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    """Return in words where a session stands, what it waits for, from whom, until when, and what would move it."""
    explanation = _explain(document, around, contract)
    # Of a session that closed they are among its doubts.
    doubts = around.doubts
    stale = [] if document.state == "CLOSED" else [*(f"{one.words}." for one in doubts.stale), *doubts.of_usage]
    effects = [effect.words(_waiting_for(effect, document, around)) for effect in around.effects[:MOST_DELIVERIES]]
    said = [*stale, *omissions(contract), *effects, *_ruled(around)]
    said += [*_refused(document, around), *_not_separated(around, contract)]
    return replace(explanation, remarks=(*said, *explanation.remarks))


def _waiting_for(effect: UnsettledEffect, document: SessionDocument, around: Surroundings) -> UUID | None:
    """Return the dead letter that can be requeued once the effect is settled: that of its packet, else of its agent."""
    own = [one.packet_id for one in around.deliveries if one.is_dead and one.recipient == effect.agent_id]
    if document.state == "HALTED" or not own:
        return None
    return effect.packet_id if effect.packet_id in own else own[-1]


def _ruled(around: Surroundings) -> list[str]:
    """Return what rules of the team have refused, in their words."""
    return [f"The gate refused {one.words}" for one in around.refusals if one.code in TEAM_CODES][:MOST_REFUSALS]


def _refused(document: SessionDocument, around: Surroundings) -> list[str]:
    """Name what else was refused last, for nothing follows from it; of a session that closed it does not matter."""
    refusals = [one for one in around.refusals if one.code not in TEAM_CODES]
    if document.state == "CLOSED" or not refusals:
        return []
    named = [f"{one.packet_type} of {one.sender} ({one.kind})" for one in refusals[:MOST_REFUSALS]]
    more = "" if len(refusals) <= MOST_REFUSALS else ", and others before"
    how = f"`apc packet refused --session-id {document.session_id}` shows field and remedy"
    return [f"The gate refused, the latest first: {', '.join(named)}{more}; {how}."]


_OF_PEOPLE = frozenset({"authors", "approved_by"})
"""Readings that tell members apart."""


def _not_separated(around: Surroundings, contract: Contract) -> list[str]:
    """Say that rules could tell authors and approvers apart by their ids alone."""
    if contract.team is None or around.shared_user is None:
        return []
    if not any(one.name in _OF_PEOPLE for expression in contract.team.expressions for one in expression.readings):
        return []
    return [
        f"Authors and approvals are not separated: the broker user {around.shared_user} speaks for every agent, so "
        "the rules tell them apart by their ids alone."
    ]


def _explain(document: SessionDocument, around: Surroundings, contract: Contract) -> Explanation:
    if document.state in contract.machine(COORDINATION).terminal:
        return explain_end(document, around.doubts)
    standing = f"{document.state}, round {document.round}"
    if not isinstance(document, TaskDocument):
        standing += f", generation {document.generation}"
    if document.paused_at is not None:
        return Explanation(f"{standing}, paused since {clock(document.paused_at)}", (_pause(document, around),))
    waits = [
        *waits_of_state(document, around, contract),
        *waits_of_deliveries(document, around),
        *_verification(document),
        *_acknowledgements(document, around),
        *waits_of_handlers(document, around),
    ]
    remarks = [*further_deliveries(document, around), *_remarks(document, around), *_ends(document, waits)]
    return Explanation(standing, tuple(waits), tuple(remarks))


def _pause(document: SessionDocument, around: Surroundings) -> Wait:
    moves = f"An operator resumes it: `apc session resume {document.session_id}`. Its deadlines stand still meanwhile."
    held = f" ({len(around.held)} packets are held until then)" if around.held else ""
    return Wait(f"RESUME{held}", moves)


def _verification(document: SessionDocument) -> list[Wait]:
    if document.verifying == 0:
        return []
    moves = "The orchestrator ends it; if it takes long, look at its log and at the artifact store (`apc doctor`)."
    return [Wait(f"the verification of {document.verifying} packets", moves, (), document.deadlines.get("generation"))]


def _acknowledgements(document: SessionDocument, around: Surroundings) -> list[Wait]:
    waits = []
    for packet_id, pending in list(document.pending_acks.items())[:MOST_DELIVERIES]:
        missing = tuple(pending.missing)
        waits.append(
            Wait(
                f"the ACK that {pending.sender} asked for with packet {packet_id}",
                "The recipient answers ACK or NACK." + around.advice(missing),
                tuple(around.describe(agent) for agent in missing),
                document.deadlines.get(f"ack:{packet_id}:{pending.attempt}"),
                f"{pending.sender} is told who did not answer",
            )
        )
    return waits


def _dead_letter(one: OpenDelivery, around: Surroundings) -> str:
    """Say what can be done about a dead letter: an effect of its handler that is unknown is settled first."""
    is_unsettled = any(effect.agent_id == one.recipient and effect.state == "unknown" for effect in around.effects)
    first = f"Settle the effect of {one.recipient} first; then " if is_unsettled else ""
    return (
        f"{one.packet_type} {one.packet_id} is a dead letter of {one.recipient}: {one.error or 'no reason recorded'}. "
        f"{first}`apc dead-letter requeue {one.packet_id}` delivers it again, `apc dead-letter discard` gives it up."
    )


def _remarks(document: SessionDocument, around: Surroundings) -> list[str]:
    dead = [delivery for delivery in around.deliveries if delivery.is_dead]
    remarks = [_dead_letter(one, around) for one in dead[:MOST_DELIVERIES]]
    if around.held:
        kinds = ", ".join(sorted({packet.packet_type for packet in around.held}))
        is_task = isinstance(document, TaskDocument)
        when = "at RESUME" if is_task else f"together at the barrier of generation {document.generation}"
        remarks.append(f"{len(around.held)} held packets ({kinds}) are judged {when}.")
    gone = [*document.dead_swarms, *document.dead_agents]
    if gone:
        missed = f"It does not wait for {', '.join(gone)}, which missed a deadline"
        remarks.append(f"{missed}; a packet of theirs changes that.")
    return remarks


def _ends(document: SessionDocument, waits: list[Wait]) -> list[str]:
    """Return the deadlines that no wait has named."""
    remarks = []
    state, wall = document.deadlines.get("state"), document.deadlines.get("wall")
    if state is not None and all(wait.until != state for wait in waits):
        remarks.append(f"If nothing moves it, the state ends at {clock(state)}: HALTED (STATE_DEADLINE).")
    if wall is not None:
        remarks.append(f"Its time budget ends at {clock(wall)}: HALTED (BUDGET_EXHAUSTED wall_ms).")
    return remarks
