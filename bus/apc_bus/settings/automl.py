"""The reference swarm."""

import hashlib
from pathlib import Path
from typing import Literal
from uuid import UUID

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from apc_bus.settings.base import ApcSettings
from apc_contracts.model import Id


class AutomlSettings(ApcSettings):
    """One run. Only the librarian reads most of it; the others learn what they need from packets."""

    model_config = SettingsConfigDict(env_prefix="APC_AUTOML_", arbitrary_types_allowed=True)

    data: Path | None = None
    """The CSV; none = the librarian opens no session."""
    target: str = "target"
    """The column to predict."""
    problem: Literal["classification", "regression"] | None = None
    """What to learn; none = guessed from the target."""
    generations: int = Field(default=24, ge=1, le=1000)
    """Generations 0 .. generations - 1; transfers begin at 11."""
    seed: int = Field(default=7, ge=0, lt=2**31)
    """The same seed gives the same promoted model."""
    budget_seconds: int = Field(default=120, ge=1)
    """Wall time of the session; when it is spent the session is halted."""
    maximum_rounds: int = Field(default=2, ge=1, le=10)
    """Validations that may be tried, each on an untouched slice of its own."""
    maximum_rows: int = Field(default=3000, ge=100)
    """A larger table is sampled down to so many rows, stratified."""
    generation_deadline_ms: int = Field(default=120_000, ge=1000)
    """A generation goes on without the swarms that take longer."""
    state_deadline_ms: int = Field(default=3_600_000, ge=1000)
    """No state of the session lasts longer."""
    veto_window_ms: int = Field(default=1000, ge=0)
    """How long an arbitrated winner can be vetoed."""
    session_id: Id = "automl"
    """Fixed for a run, so that a restarted librarian repeats START and opens no second session."""
    run_id: Id = "automl"
    """What the log files the run under."""
    task_id: Id = "model-search"
    """The one task of the run; lineage compares runs of the same task."""
    start_packet_id: UUID | None = None
    """Id of START; none = made from session_id."""
    priors: bool = True
    """Begin with what worked before on similar tables; without, a run depends on nothing before it."""
    training_processes: int = Field(default=1, ge=1, le=64)
    """Training processes of one worker process."""

    @property
    def convergence_generations(self) -> int:
        """The last generations, one in twelve, tune what the swarms know by then."""
        return self.generations // 12

    @property
    def start_id(self) -> UUID:
        """The id of START: the same for every start of a librarian of this session."""
        return self.start_packet_id or _id_from(self.session_id)


def _id_from(text: str) -> UUID:
    """Return a UUID of version 8 (RFC 9562: the maker's own); version 5 belongs to replies, which have a cause."""
    digest = bytearray(hashlib.sha256(f"apc-automl-start/{text}".encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return UUID(bytes=bytes(digest))
