"""What the rules for ASK, ANSWER and WAKE read of a session of the coordinator `task`."""

from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

from apc_contracts.judging.session_view import QuestionPlaces, WakePlaces
from apc_contracts.session.document import Work


def places_of(work: Work, deadlines: Mapping[str, datetime], packet_id: UUID | None) -> QuestionPlaces:
    """Return what is known of the question with this id, and how much room there is."""
    ends_at, count = deadlines.get("deadline"), len(work.questions)
    found = None if packet_id is None else work.questions.get(packet_id)
    if found is None:
        return QuestionPlaces(open_questions=count, ends_at=ends_at)
    return QuestionPlaces(
        found.asker, tuple(found.may_answer), found.role, found.payload_hash, count, ends_at, found.returns
    )


def wake_places_of(work: Work, deadlines: Mapping[str, datetime], agent_id: str, key: str) -> WakePlaces:
    """Return how many timers are pending, and whether this one is."""
    is_pending = any((one.agent, one.key) == (agent_id, key) for one in work.wakes.values())
    return WakePlaces(len(work.wakes), is_pending, deadlines.get("deadline"))
