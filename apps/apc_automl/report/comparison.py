"""Was the search worth it: the judged model beside a plain strong model and beside guessing, on the same rows."""

from apc_automl.report.outcome import Outcome

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
