"""Payloads of the SIGNALs that open a session and report its state (docs/specification/contract.md section 10)."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from apc_contracts.contract_model import Count, DurationMs, Fraction, Id, Model, Name, Time, Uuid, broken
from apc_contracts.vocabulary import PROTOCOL_1_1, PROTOCOL_VERSION, RunPhase

# Payload of SIGNAL WAKE of apc/1.1: a timer that an agent sets, and its coming back (docs/how-to/timers.md).

MAX_KEY = 200
WakeKey = Annotated[str, Field(min_length=1, max_length=MAX_KEY)]


class WakeSpec(Model):
    """A timer of an agent in its session; a later one with the same key replaces it.

    An agent sets it to go off `after_ms` or `at`. The orchestrator's WAKE names in `at` when it was due.

    Attributes:
        key: its name among the agent's timers in the session, 1 to 200 characters.
        after_ms: milliseconds from the verdict on.
        at: when.
    """

    key: WakeKey
    after_ms: DurationMs | None = None
    at: Time | None = None

    @model_validator(mode="after")
    def _has_one_time(self) -> Self:
        if (self.after_ms is None) == (self.at is None):
            raise broken("at", "a wake has one time: give after_ms or at")
        return self


MAX_VETO_WINDOW_MS = 86_400_000
MAX_ROUNDS = 1_000
MAX_APPROVALS = 64
DAY_MS = 86_400_000
ROLE_PREFIX = "role:"
"""`role:lead` in deciders or reviewers stands for every member with that role."""


class SwarmSpec(Model):
    """A swarm of the session and its agents.

    Attributes:
        swarm_id: its name.
        agents: its agents.
    """

    swarm_id: Id
    agents: tuple[Id, ...]


class Budgets(Model):
    """What a session may spend; an absent budget is no limit. `cost` is in the operator's unit.

    Attributes:
        packets: accepted packets.
        wall_ms: milliseconds since START.
        tokens: tokens of language models, as reported.
        cost: in the operator's unit, as reported.
    """

    packets: Count | None = None
    wall_ms: DurationMs | None = None
    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0)] | None = None


class SessionSpec(Model):
    """How to run a session; sent with SIGNAL START. `members` are agents beside those of the swarms.

    `contract` names another contract of the coordinator `research` than the deployment's default (apc/1.1 only).

    Attributes:
        contract: the contract's name; None = the deployment's default.
        swarms: at least one; no agent is in two.
        members: agents beside those of the swarms.
        task_ids: the tasks that packets may name.
        generation_limit: the last generation before convergence; the first is 0.
        convergence_generations: generations of CONTROLLED_CONVERGENCE beyond the limit; with 0 the limit ends the
            search at once.
        generation_deadline_ms: milliseconds that a generation may take.
        state_deadline_ms: milliseconds that any other state may take.
        max_rounds: 1..1000.
        search_ms: after these milliseconds the open generation is the last one of the search; None = generation_limit
            alone ends it.
        budgets: what the session may spend.
        veto_window_ms: milliseconds in which a winner can be vetoed, at most a day.
    """

    contract: Name | None = None

    swarms: Annotated[tuple[SwarmSpec, ...], Field(min_length=1)]
    members: tuple[Id, ...] = ()
    task_ids: tuple[Id, ...] = ()
    generation_limit: Count
    convergence_generations: Count = 0
    generation_deadline_ms: DurationMs
    state_deadline_ms: DurationMs
    max_rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 2
    search_ms: DurationMs | None = None
    budgets: Budgets = Budgets()
    veto_window_ms: Annotated[int, Field(ge=0, le=MAX_VETO_WINDOW_MS)] = 2000

    @model_validator(mode="after")
    def _swarms_are_distinct(self) -> Self:
        seen: set[str] = set()
        agents: set[str] = set()
        for index, swarm in enumerate(self.swarms):
            if swarm.swarm_id in seen:
                raise broken(f"swarms[{index}].swarm_id", "swarm listed twice: name each swarm once")
            seen.add(swarm.swarm_id)
            for place, agent in enumerate(swarm.agents):
                if agent in agents:
                    raise broken(f"swarms[{index}].agents[{place}]", "agent listed twice: name each in one swarm")
                agents.add(agent)
        return self


class TaskSessionSpec(Model):
    """How to run a session of the coordinator `task`; sent with SIGNAL START of apc/1.1.

    `deciders` (default: the sender of START) may end the work, `reviewers` approve it: agent ids of members, or
    `role:NAME` for all members with that role. A reviewer who also decides does not count. `approvals` is how many
    reviewers must agree. With `on_failure: halt` the session halts when a handler fails permanently.

    Attributes:
        contract: the contract's name.
        members: the agents that take part, at least one.
        deciders: who may end the work.
        reviewers: who approve its result.
        approvals: how many of them, 1..64.
        on_failure: `halt`: the session ends when a handler fails permanently; `continue`: it goes on.
        task_ids: the tasks that packets may name.
        max_rounds: 1..1000: how often a result may be sent back, and one more.
        deadline_ms: milliseconds that the whole session may last.
        budgets: what the session may spend.
    """

    contract: Name
    members: Annotated[tuple[Id, ...], Field(min_length=1)]
    deciders: tuple[Id, ...] = ()
    reviewers: tuple[Id, ...] = ()
    approvals: Annotated[int, Field(ge=1, le=MAX_APPROVALS)] = 1
    on_failure: Literal["halt", "continue"] = "halt"
    task_ids: tuple[Id, ...] = ()
    max_rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 2
    deadline_ms: DurationMs = DAY_MS
    budgets: Budgets = Budgets()

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        for field in ("members", "deciders", "reviewers"):
            seen: set[str] = set()
            for index, name in enumerate(getattr(self, field)):
                if name in seen:
                    raise broken(f"{field}[{index}]", f"{name} is listed twice: list it once")
                seen.add(name)
        return self


class SessionState(Model):
    """The state of a session; sent with the orchestrator's SIGNAL SYNC.

    `scores` maps swarm_id to its verified score; `subjects` holds the packets concerned (arbitrated EVALs, winner,
    ARTIFACT to validate, the DONE under review). `contract`, `deciders` and `reviewers` are those of a session of
    apc/1.1 that named its contract.

    Attributes:
        state: the state of the machine.
        run_phase: the phase that belongs to it.
        round: from 0.
        generation: from 0.
        step: from 0.
        paused: whether it is paused.
        scores: swarm -> its verified score, 0..1.
        subjects: the packets that the state is about.
        contract: the contract that was named.
        deciders: who may end the work.
        reviewers: who approve its result.
    """

    state: Name
    run_phase: RunPhase
    round: Count
    generation: Count
    step: Count
    paused: bool
    scores: Mapping[str, Fraction]
    subjects: tuple[Uuid, ...]
    contract: Name | None = None
    deciders: tuple[Id, ...] | None = None
    reviewers: tuple[Id, ...] | None = None


NEW_FIELDS = ("contract", "deciders", "reviewers")
"""Fields of a session that apc/1.0 does not have."""


def first_new_field(session: SessionSpec | TaskSessionSpec | SessionState) -> str | None:
    """Return the first field that apc/1.0 does not have; None when there is none."""
    for name in NEW_FIELDS:
        if getattr(session, name, None) is not None:
            return name
    return None


def version_of(session: SessionSpec | TaskSessionSpec | SessionState) -> str:
    """Return the oldest protocol version that has every field of a spec or state."""
    return PROTOCOL_VERSION if first_new_field(session) is None else PROTOCOL_1_1
