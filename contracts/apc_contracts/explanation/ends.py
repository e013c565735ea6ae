"""Sessions that have ended: what the reason of a halt means."""

from apc_contracts.explanation.failure import Failure
from apc_contracts.explanation.surroundings import Doubts
from apc_contracts.explanation.words import Explanation, clock
from apc_contracts.session.document import SessionDocument
from apc_contracts.text import numbered

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
    failed = doubts.halted_by
    failures = () if failed is None else (*_last_good(failed), failed.remedy)
    dead = numbered(len(doubts.dead), "dead letter is", "dead letters are")
    discard = f"`apc dead-letter discard --all --session {document.session_id}` gives up what is left"
    letters = (f"{dead} left, and work of a halted session cannot be requeued: {discard}.",) if doubts.dead else ()
    standing = f"HALTED: {reason}" + (f": {meaning}" if meaning else "")
    return Explanation(
        standing if failed is None else f"HALTED, HANDLER_FAILED: {failed.sentence.removesuffix('.')}",
        remarks=(*failures, *letters, "Nothing moves a halted session: open another one with SIGNAL START."),
    )


def _last_good(failure: Failure) -> tuple[str, ...]:
    good = failure.last_good
    if good is None:
        return ()
    return (f"Before it {good.recipient} handled {good.packet_type} {good.packet_id} at {clock(good.at)}.",)
