"""Sessions that have ended: what the reason of a halt means."""

from apc_contracts.explanation.result import Explanation
from apc_contracts.session.document import SessionDocument

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


def explain_end(document: SessionDocument) -> Explanation:
    """Return why a CLOSED or HALTED session ended; nothing moves it any more."""
    if document.state == "CLOSED":
        return Explanation(
            f"CLOSED in round {document.round}: it ended as planned, and nothing moves it any more",
            remarks=("To go on with the work, open another session with SIGNAL START.",),
        )
    reason = document.halt_reason or "no reason recorded"
    meaning = _REASONS.get(reason.split(" ", 1)[0])
    return Explanation(
        f"HALTED: {reason}" + (f": {meaning}" if meaning else ""),
        remarks=("Nothing moves a halted session: open another one with SIGNAL START.",),
    )
