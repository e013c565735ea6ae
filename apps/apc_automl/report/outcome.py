"""What a run has come to: the promoted model or the gate that stopped it, and where to look."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apc_automl.report.run_log import TransferRecord
from apc_automl.training.recipes import Recipe
from apc_contracts.contract.contract import load_contract

MEANINGS = {
    "outcome": "share of the trivial baseline's loss that the model removes, on untouched rows",
    "rtf": "share of rows with the same prediction after saving and loading",
    "audit": "share of hashes that verify",
    "stability": "agreement of the folds of the cross-validation",
    "learnability": "what the model keeps of its outcome as training data grow",
    "generalization_ratio": "outcome on untouched rows, relative to the cross-validation",
    "drift_risk": "how far untouched rows and the errors on them lie from the known ones; chance reaches 0.3",
}


@dataclass(frozen=True)
class Judged:
    """How a final model did on data that nobody had seen."""

    swarm: str
    recipe: Recipe
    model_hash: str
    outcome: float
    loss_name: str
    loss: float
    baseline_loss: float
    rows: int
    gates: dict[str, float]
    score: str = ""
    """In a unit that people know, such as `accuracy 96.5%`; empty in runs of older versions."""


@dataclass(frozen=True)
class Outcome:
    """The end of a run, for the terminal and for scripts."""

    run_id: str
    state: str
    """CLOSED, HALTED, or the state in which the log leaves the session; `UNKNOWN` without one."""
    reason: str | None
    """Why nothing was promoted, in the gate's words; None for a promoted model."""
    failed_gates: tuple[str, ...]
    judged: Judged | None
    """The last final model that was validated, promoted or not."""
    model_file: Path | None
    report_file: Path
    generations: int
    transfers: tuple[TransferRecord, ...]
    packets_logged: int
    packets_refused: int
    candidate_file: Path | None = None
    """The best verified model, when the gate refused it."""
    all_rows_file: Path | None = None
    """The promoted recipe, trained on every row and never scored."""
    facts: tuple[str, ...] = ()
    """What is said of the table: kind of problem, sizes of the parts, notes."""
    review: dict[str, Any] | None = None
    """`training.reviewing.review`: importances, confusion or residuals, calibration, a plain strong model."""
    profile: dict[str, Any] | None = None
    """What the table looks like; None in runs of older versions."""
    failures: tuple[str, ...] = ()
    """The failed gates in words."""
    used_priors: bool = False
    """Whether recipes of earlier runs were tried first."""
    repeat: tuple[str, ...] = ()
    """Options of `apc automl run` that fix the sizes that this run has had; empty = no options repeat it."""

    @property
    def is_promoted(self) -> bool:
        """Whether a model passed the gate."""
        return self.model_file is not None

    @property
    def exit_code(self) -> int:
        """0 = a model was promoted, 3 = nothing passed the gate."""
        return 0 if self.is_promoted else 3

    @property
    def transfers_accepted(self) -> int:
        """How many TRANSFERs went through."""
        return sum(transfer.is_accepted for transfer in self.transfers)

    @property
    def refused_transfers(self) -> dict[str, int]:
        """Refusal -> how many TRANSFERs it met; by code, so that scores do not split the count."""
        reasons = (transfer.reason or "" for transfer in self.transfers if not transfer.is_accepted)
        return dict(sorted(Counter(reason.split(":")[0] for reason in reasons).items()))

    @property
    def next_steps(self) -> tuple[str, ...]:
        """Commands that show what lies behind this outcome."""
        return (
            f"apc packet replay --run-id {self.run_id}",
            f"apc packet trace --run-id {self.run_id} --type EVAL",
            f"open {self.report_file}",
        )


EVEN = 0.02
"""Losses that differ by less than this share are even."""
PLAIN = "plain gradient boosting"
GUESSING = "guessing"


def scores_of(outcome: Outcome) -> list[tuple[str, str, float | None]]:
    """Return (who, score in a unit that people know, loss) for each; empty where nothing was reviewed.

    No loss of numbers: the mean squared error is the square of the score.
    """
    judged, review = outcome.judged, outcome.review
    if judged is None or review is None or not judged.score:
        return []
    others = [(PLAIN, review["plain"]), (GUESSING, review["guessing"])]
    rows = [("this model", judged.score, judged.loss)]
    rows += [(name, found["score"], found["loss"]) for name, found in others]
    has_loss = "residuals" not in review
    return [(name, score, loss if has_loss else None) for name, score, loss in rows]


def worth_of(outcome: Outcome) -> str | None:
    """Say whether the search was worth it; None where nothing was reviewed."""
    if outcome.review is None or outcome.judged is None:
        return None
    plain, ours = outcome.review["plain"], outcome.judged.loss
    if not outcome.is_promoted and ours <= plain["loss"] * (1 + EVEN):
        return "No: the gate refused this model, and the plain one is no better."
    share = abs(1 - ours / plain["loss"]) if plain["loss"] > 0 else 0.0
    if share < EVEN:
        return "Hardly: the plain model is as good."
    is_better = ours < plain["loss"]
    loss = outcome.judged.loss_name
    if not plain["is_clear"]:
        side = "lower" if is_better else "higher"
        return (
            f"Cannot be said: the {loss} is {share:.0%} {side} than the plain model's, "
            f"but on {outcome.judged.rows} rows that may be chance."
        )
    if is_better:
        return f"Yes: the {loss} is {share:.0%} lower than the plain model's."
    return (
        f"No: the {loss} is {share:.0%} higher than the plain model's. More time may help (--budget-seconds); "
        "otherwise take the plain model."
    )


def failures_of(gates: Mapping[str, Any], failed: Sequence[str]) -> tuple[str, ...]:
    """Return each failed gate in words: its figure, the bar, what it means."""
    bars = {name: guard.text.split()[1:] for name, guard in load_contract().promotion_gate.criteria}
    limits = {">=": "at least", "<=": "at most", "==": "exactly", ">": "more than", "<": "less than"}
    return tuple(
        f"{name} is {gates[name]:.3f}, the gate asks for {limits[bars[name][0]]} {bars[name][1]} ({MEANINGS[name]})"
        for name in failed
        if gates.get(name) is not None and name in bars
    )
