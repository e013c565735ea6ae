"""The deliveries that a session waits for, and those that do not move."""

from datetime import datetime, timedelta

from apc_contracts.explanation.surroundings import OpenDelivery, Surroundings
from apc_contracts.explanation.words import MOST_DELIVERIES, Wait, clock
from apc_contracts.session.document import SessionDocument, TaskDocument
from apc_contracts.session.movement import GENERATION_STATES
from apc_contracts.vocabulary import ORCHESTRATOR

WAIT_FOR_DELIVERIES = GENERATION_STATES | {"PROMOTION"}
"""States of the research coordinator that end when deliveries have ended."""


def waits_of_deliveries(document: SessionDocument, around: Surroundings) -> list[Wait]:
    """Return the handlers, retries and absent workers that a barrier, the commons or a task wait for."""
    return [_delivery(document, delivery, around) for delivery in _awaited(document, around)[:MOST_DELIVERIES]]


def further_deliveries(document: SessionDocument, around: Surroundings) -> list[str]:
    """Say how many deliveries are open beside those that the waits name, and name those that do not move."""
    more = len(_awaited(document, around)) - MOST_DELIVERIES
    if more > 0:
        how = f"`apc packet trace --session-id {document.session_id} --events` shows what became of each packet"
        return [f"{more} more deliveries are open: {how}."]
    if _waits_for_deliveries(document):
        return []
    stuck = [one for one in _to_agents(around) if one.retry_at is not None or not around.is_live(one.recipient)]
    waits = [_delivery(document, delivery, around) for delivery in stuck[:MOST_DELIVERIES]]
    return [f"On its way: {wait.what}. {wait.moves}" for wait in waits]


def _waits_for_deliveries(document: SessionDocument) -> bool:
    return isinstance(document, TaskDocument) or document.state in WAIT_FOR_DELIVERIES


def _awaited(document: SessionDocument, around: Surroundings) -> list[OpenDelivery]:
    """Return the deliveries that have to end: of a task those first that nobody handles, then the oldest."""
    if not _waits_for_deliveries(document):
        return []
    if isinstance(document, TaskDocument):
        open_ones = [one for one in _to_agents(around) if not one.is_notice]
        return sorted(open_ones, key=lambda one: around.is_live(one.recipient))
    return [one for one in _to_agents(around) if one.recipient not in document.dead_agents]


def _to_agents(around: Surroundings) -> list[OpenDelivery]:
    """Return the open deliveries; what goes to the orchestrator alone is applied there."""
    return [delivery for delivery in around.deliveries if delivery.recipient != ORCHESTRATOR]


def _delivery(document: SessionDocument, one: OpenDelivery, around: Surroundings) -> Wait:
    handling = f"{one.recipient} to handle {one.packet_type} {one.packet_id}"
    due = document.deadlines.get("generation")
    if one.retry_at is not None and one.retry_at > around.now:
        moves = f"It is delivered again at {clock(one.retry_at)}. The last attempt: {one.error or 'asked for a retry'}."
        return Wait(f"a retry of {handling} (attempt {one.attempt})", moves)
    opened = "" if one.since is None else f", open for {_span(one.since, around.now)}"
    what = f"{handling} (attempt {one.attempt}{opened})"
    moves = "Its handler ends." if around.is_live(one.recipient) else around.advice((one.recipient,)).strip()
    return Wait(what, moves, (_heard_of(one, around),), due, "it is not waited for any more" if due else "")


def _heard_of(one: OpenDelivery, around: Surroundings) -> str:
    """Describe the recipient; of a live one also how long it has been silent, for it may have died since.

    Not where its host is here: that is known to the second.
    """
    known = around.agents.get(one.recipient)
    is_doubtful = known is not None and not known.is_host_present and around.is_live(one.recipient)
    seen = known.last_seen if known is not None and is_doubtful else None
    heard = "" if seen is None else f" (last seen {_span(seen, around.now)} ago)"
    return around.describe(one.recipient) + heard


def _span(since: datetime, until: datetime) -> str:
    seconds = max(0, (until - since) // timedelta(seconds=1))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3_600} h"
