"""A builder's memory in one session, as JSON in `ctx.state`; what it gives to the other swarms, and keeps of theirs."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from apc_agents.handling.handler_context import HandlerContext
from apc_automl.swarm.briefs import Brief, builder_id
from apc_automl.training.recipes import SWARMS, Recipe
from apc_automl.training.search import Imported, Trial
from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import TransferWindow
from apc_contracts.packet import Lineage, Packet
from apc_contracts.payloads.by_type import TransferPayload, TransferPolicy
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.vocabulary import RunPhase, TransferMode

IMPORT_DELAY = 2
"""A recipe of a TRANSFER of generation g is used from g + 2 on: its delivery has ended then, in every run."""


class Entry(BaseModel):
    """A trial and where it was made."""

    model_config = ConfigDict(extra="forbid")
    name: str
    round: int
    generation: int
    trial: Trial
    stability: float
    shortfalls: dict[str, float] = {}
    """Gate -> by how much the model was short of the best there can be."""
    model_bytes: int = 0
    eval_id: UUID | None = None

    @property
    def risk(self) -> float:
        """The largest shortfall; the middle of what there can be where none was noted."""
        return max(self.shortfalls.values(), default=0.5)


class Tried(BaseModel):
    """A method that was cross-validated on all rows that a builder may see."""

    model_config = ConfigDict(extra="forbid")
    recipe: Recipe
    score: float
    """1 - loss / loss of the trivial baseline, the mean over its folds."""
    is_whole: bool
    """On all folds; else it was given up after the first."""
    is_falsified: bool = False

    @property
    def trial(self) -> Trial:
        """It as the search sees it: what was given up is not built upon."""
        return Trial(recipe=self.recipe, outcome=self.score, is_falsified=self.is_falsified or not self.is_whole)


class Import(BaseModel):
    """A recipe that came by TRANSFER."""

    model_config = ConfigDict(extra="forbid")
    recipe: Recipe
    from_swarm: str
    score: float
    round: int
    generation: int


class Notebook(BaseModel):
    """Read from `ctx.state` when a handler begins, written back when it ends."""

    model_config = ConfigDict(extra="forbid")
    brief: Brief | None = None
    entries: list[Entry] = []
    tried: list[Tried] = []
    imports: list[Import] = []
    priors: list[Recipe] = []
    """What earlier runs found good, best first."""
    refits: dict[UUID, UUID] = {}
    """ARTIFACT of EXECUTION -> the winning EVAL whose recipe it refits."""

    @classmethod
    def read(cls, state: dict[str, Any]) -> "Notebook":
        """Return the notebook in a state document; a new one in an empty document."""
        return cls.model_validate(state.get("notebook", {}))

    def write(self, state: dict[str, Any]) -> None:
        """Write the notebook into the state document."""
        state["notebook"] = self.model_dump(mode="json")

    def has_worked(self, round_number: int, generation: int) -> bool:
        """Return whether the work of a generation is done."""
        return any(entry.round == round_number and entry.generation == generation for entry in self.entries)

    @property
    def trials(self) -> list[Trial]:
        """All trials of the session, in the order in which they were made."""
        return [entry.trial for entry in self.entries]

    def best(self) -> Entry | None:
        """Return the entry with the highest outcome that was not falsified; the earliest of equals."""
        sound = [entry for entry in self.entries if not entry.trial.is_falsified]
        return max(sound, key=lambda entry: entry.trial.outcome, default=None)

    def best_untrained(self) -> Recipe | None:
        """Return the method with the best score of those that were not trained; the earliest of equals."""
        trained = {entry.trial.recipe.method for entry in self.entries}
        open_ = [one for one in self.tried if one.is_whole and one.recipe.method not in trained]
        return max(open_, key=lambda one: one.score).recipe if open_ else None

    def usable_imports(self, round_number: int, generation: int) -> list[Imported]:
        """Return the imports that every run of this seed has at this point."""
        return [
            Imported(recipe=one.recipe, score=one.score)
            for one in self.imports
            if (one.round == round_number and one.generation + IMPORT_DELAY <= generation)
            or (one.round < round_number and generation >= IMPORT_DELAY)
        ]

    def entry_of(self, eval_ids: Sequence[UUID]) -> Entry | None:
        """Return the entry whose EVAL is among these."""
        return next((entry for entry in self.entries if entry.eval_id in eval_ids), None)

    def promoted(self, artifacts: Sequence[UUID]) -> Entry | None:
        """Return the entry that one of these ARTIFACTs refits."""
        return self.entry_of([self.refits[artifact] for artifact in artifacts if artifact in self.refits])

    def falsify(self, name: str) -> None:
        """Note that the sentinel could not reproduce this work."""
        for entry in self.entries:
            if entry.name == name:
                entry.trial = entry.trial.model_copy(update={"is_falsified": True})
                for one in self.tried:
                    one.is_falsified = one.is_falsified or one.recipe == entry.trial.recipe


TOP_K = 2
"""Where the window asks for none."""
MODES = {
    RunPhase.REFINEMENT: TransferMode.SELECTIVE_IMPORT,
    RunPhase.CONVERGENCE: TransferMode.WINNER_TO_LOSERS,
    RunPhase.PROMOTION: TransferMode.COMMONS_SEED,
}


async def send_transfers(swarm: str, best: Entry | None, session: SessionState, ctx: HandlerContext) -> None:
    """Offer a recipe of the swarm to every swarm that is behind by as much as the phase asks for."""
    mode = MODES.get(session.run_phase)
    own = session.scores.get(swarm)
    window = ctx.contract.window(session.generation)
    if not window.is_open or mode is None or best is None or own is None:
        return
    factor = _factor(session.run_phase, window, ctx.contract)
    recipe = best.trial.recipe
    protocol = await ctx.artifacts.put(recipe.canonical())
    for other in SWARMS:
        score = session.scores.get(other)
        if other == swarm or score is None or not own > score * factor:
            continue
        await ctx.emit(
            TransferPayload(
                protocol_id=protocol,
                from_swarm=swarm,
                to_swarm=other,
                sender_score=own,
                receiver_score=score,
                transfer_policy=TransferPolicy(mode=mode, top_k=window.top_k_limit or TOP_K),
            ),
            to=builder_id(other),
            run_phase=session.run_phase,
            generation=session.generation,
            confidence=best.stability,
            symbolic_keys=(recipe.family, protocol),
            lineage=lineage_of(recipe).model_copy(update={"transfer_mode": mode}),
        )


def lineage_of(recipe: Recipe) -> Lineage:
    """Return the lineage of a packet about a recipe; an EVAL that has it counts for the recipe's protocol."""
    return Lineage(protocol_id=recipe.hash, parent_protocol_ids=recipe.parents, ancestor_swarms=recipe.ancestor_swarms)


def _factor(phase: RunPhase, window: TransferWindow, contract: Contract) -> float:
    """Return how far ahead the sender must be; from generation 21 the throttle of discovery is off."""
    if phase is RunPhase.REFINEMENT:
        return score_factor(contract)
    return window.score_multiplier or 1.0


def score_factor(contract: Contract) -> float:
    """Return how far ahead a swarm must be to offer anything: the strictest of the windows, whichever is open."""
    return max((window.score_multiplier or 1.0 for window in contract.windows if window.is_open), default=1.0)


async def remember_import(transfer: Packet[TransferPayload], ctx: HandlerContext) -> None:
    """Fetch the recipe of an accepted TRANSFER by its hash and note it. Raises ArtifactError."""
    notebook = Notebook.read(ctx.state)
    recipe = Recipe.read(await ctx.artifacts.get(transfer.payload.protocol_id))
    known = {(one.recipe.hash, one.from_swarm, one.round) for one in notebook.imports}
    if (recipe.hash, transfer.payload.from_swarm, ctx.round) in known:
        return
    notebook.imports.append(
        Import(
            recipe=recipe,
            from_swarm=transfer.payload.from_swarm,
            score=transfer.payload.sender_score,
            round=ctx.round,
            generation=transfer.trace.generation,
        )
    )
    notebook.write(ctx.state)
