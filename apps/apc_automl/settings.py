"""The settings of a run of the reference swarm. The entry point of group `apc.settings` names the class."""

from dataclasses import fields
from pathlib import Path
from typing import Literal
from uuid import UUID

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from apc_automl.data.table_schema import TableOptions
from apc_bus.settings import ApcSettings
from apc_contracts.contract_model import Id
from apc_contracts.identity.ids import keyed_id

CLOSING_SECONDS = 240


class AutomlSettings(ApcSettings):
    """One run. Most settings are read by the librarian only; the other roles get theirs from packets."""

    model_config = SettingsConfigDict(env_prefix="APC_AUTOML_", arbitrary_types_allowed=True)

    data: Path | None = None
    """The CSV; none = the librarian opens no session."""
    target: str = "target"
    """The column to predict."""
    problem: Literal["classification", "regression"] | None = None
    """Kind of problem; none = derived from the target."""
    separator: str | None = None
    """The sign between the fields of the table; none = detected."""
    decimal: Literal[".", ","] | None = None
    """The decimal sign; none = told from the cells of each column."""
    encoding: str | None = None
    """The encoding of the table; none = detected."""
    header: bool | None = None
    """Whether the first line has the names of the columns; none = detected."""
    dates: Literal["day-first", "month-first"] | None = None
    """What 03.04.2021 and 03/04/2021 mean; none = told from the cells of each column."""
    group: str | None = None
    """The column whose equal values keep rows together in one part of the table; none = only equal rows are."""
    time: str | None = None
    """The column by which rows are in time: the latest are judged; none = a date column where it matters."""
    generations: int = Field(default=24, ge=1, le=1000)
    """Number of generations, counted from 0; transfers start at generation 11."""
    convergence: int | None = Field(default=None, ge=0, le=1000)
    """Number of the last generations, which only tune what is known; none = one in twelve."""
    candidates: int = Field(default=1, ge=1, le=64)
    """Methods that a swarm compares in each generation before it trains the best one; 1 = it takes the next."""
    seed: int = Field(default=7, ge=0, lt=2**31)
    """The same seed gives the same promoted model."""
    budget_seconds: int = Field(default=120, ge=1)
    """Search time; then the best verified candidate is arbitrated and validated."""
    maximum_rounds: int = Field(default=2, ge=1, le=10)
    """Number of validations, each on a separate untouched slice."""
    maximum_rows: int = Field(default=3000, ge=100)
    """Of a larger table the search looks at this many rows, a stratified sample of each part."""
    generation_deadline_ms: int = Field(default=120_000, ge=1000)
    """A generation continues without swarms that take longer."""
    state_deadline_ms: int = Field(default=3_600_000, ge=1000)
    """Longest time in one state of the session."""
    veto_window_ms: int = Field(default=1000, ge=0)
    """How long an arbitrated winner can be vetoed."""
    session_id: Id = "automl"
    """Session of the run; fixed, so that a restarted librarian repeats START instead of opening a second session."""
    run_id: Id = "automl"
    """Run id in the log."""
    task_id: Id = "model-search"
    """The one task of the run; lineage compares runs of the same task."""
    start_packet_id: UUID | None = None
    """Packet id of START; none = derived from session_id."""
    priors: bool = True
    """Start with recipes that worked on similar tables; if false, a run does not depend on earlier ones."""
    resume: Id | None = None
    """Start with the best recipes of this run alone; none = of all runs on similar tables."""
    training_processes: int = Field(default=1, ge=1, le=64)
    """Training processes of one worker process."""

    @property
    def options(self) -> TableOptions:
        """What the user says about the table."""
        return TableOptions(*(getattr(self, one.name) for one in fields(TableOptions)))

    @property
    def wall_ms(self) -> int:
        """The session's whole time: search, and twice as much, at least four minutes, to train and judge the winner."""
        return self.budget_seconds * 1000 + max(2 * self.budget_seconds, CLOSING_SECONDS) * 1000

    @property
    def convergence_generations(self) -> int:
        """The last generations, by default one in twelve, tune what the swarms know by then."""
        return self.generations // 12 if self.convergence is None else min(self.convergence, self.generations - 1)

    @property
    def start_id(self) -> UUID:
        """The id of START: the same for every start of a librarian of this session."""
        return self.start_packet_id or keyed_id("librarian", self.session_id, "start")
