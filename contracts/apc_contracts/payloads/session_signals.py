"""Payloads of the SIGNALs that open a session and report its state (docs/specification/contract.md section 10)."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from apc_contracts.model import Count, DurationMs, Fraction, Id, Model, Name, Uuid, broken
from apc_contracts.vocabulary import RunPhase

MAX_VETO_WINDOW_MS = 86_400_000
MAX_ROUNDS = 1_000


class SwarmSpec(Model):
    """A swarm of the session and its agents."""

    swarm_id: Id
    agents: tuple[Id, ...]


class Budgets(Model):
    """What a session may spend; an absent budget is no limit. `cost` is in the operator's unit."""

    packets: Count | None = None
    wall_ms: DurationMs | None = None
    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0)] | None = None


class SessionSpec(Model):
    """How to run a session; sent with SIGNAL START. `members` are agents beside those of the swarms."""

    swarms: Annotated[tuple[SwarmSpec, ...], Field(min_length=1)]
    members: tuple[Id, ...] = ()
    task_ids: tuple[Id, ...] = ()
    generation_limit: Count
    """The last generation before convergence; the first is 0."""
    convergence_generations: Count = 0
    """Generations of CONTROLLED_CONVERGENCE beyond the limit; with 0 the limit ends the search at once."""
    generation_deadline_ms: DurationMs
    state_deadline_ms: DurationMs
    max_rounds: Annotated[int, Field(ge=1, le=MAX_ROUNDS)] = 2
    search_ms: DurationMs | None = None
    """After this time the open generation is the last one of the search; None = generation_limit alone ends it."""
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


class SessionState(Model):
    """The state of a session; sent with the orchestrator's SIGNAL SYNC.

    `scores` maps swarm_id to its verified score; `subjects` holds the packets concerned (arbitrated EVALs, winner,
    ARTIFACT to validate).
    """

    state: Name
    run_phase: RunPhase
    round: Count
    generation: Count
    step: Count
    paused: bool
    scores: Mapping[str, Fraction]
    subjects: tuple[Uuid, ...]
