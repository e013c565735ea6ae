"""Arbitrations and protocols."""

from datetime import datetime
from uuid import UUID

from apc_web.models.model_base import NEXT, ApiModel, NamedCount


class ArbitrationOption(ApiModel):
    """One of those compared."""

    candidate_id: str
    packet_ids: list[UUID]
    total_score: float
    score_components: dict[str, float]
    refused_with: list[str]
    """Codes of the refusals of a TRANSFER that did not go through."""
    rank: int | None
    is_winner: bool


class ArbitrationSummary(ApiModel):
    """A live arbitration with its candidates."""

    judged_at: datetime
    shard: int
    seq: int
    packet_id: UUID
    session_id: str
    run_id: str
    task_id: str
    round: int
    generation: int
    step: int
    arbitration_id: str
    subject: str
    """transfers or candidates."""
    winner_candidate_id: str
    selected: list[UUID]
    margin: float | None
    """Score of the best minus the second best; null with fewer than two that went on."""
    candidates: list[ArbitrationOption]


class ArbitrationPage(ApiModel):
    """Arbitrations, newest first; those whose bodies are sealed or erased are left out."""

    items: list[ArbitrationSummary]
    next: str | None = NEXT


class ArbitrationGroup(ApiModel):
    """Figures of the candidates of one swarm, protocol, code or run."""

    name: str
    arbitrations: int
    candidates: int
    selected: int
    refused: int
    mean_score: float | None


class GenerationDiversity(ApiModel):
    """How different the candidates of a generation were, as the mean over the runs that compared any."""

    generation: int
    runs: int
    candidates: int
    """Of all the runs together; one that no packet stands for does not count."""
    mean_swarms: float
    """Different swarms among the candidates of a run."""
    mean_protocols: float
    """Different protocols among the candidates of a run."""


class ArbitrationStatistics(ApiModel):
    """Figures over the newest arbitrations, at most 5,000."""

    looked_at: int
    is_complete: bool
    """False when there are more than were looked at."""
    subjects: list[NamedCount]
    codes: list[NamedCount]
    """Refusals of candidates by code."""
    mean_margin: float | None
    margins: list[float]
    """Decision margins, in the order of the log, at most 1,000."""
    swarms: list[ArbitrationGroup]
    protocols: list[ArbitrationGroup]
    runs: list[ArbitrationGroup]
    generations: list[ArbitrationGroup]
    diversity: list[GenerationDiversity]
    """By generation, the first one first."""


class ProtocolSummary(ApiModel):
    """How a protocol does."""

    protocol_id: str
    transfers: int
    accepted: int
    runs: int
    tasks: int
    acceptance_rate: float
    average_outcome: float
    average_drift_risk: float
    effectiveness: float
    outcome_lift: float
    drift_delta: float
    last_seen_at: datetime
    roots: list[str]
    blocked_at: datetime | None
    blocked_until: datetime | None
    blocked_by: str | None


class ProtocolList(ApiModel):
    """Protocols, the most transferred first."""

    items: list[ProtocolSummary]
