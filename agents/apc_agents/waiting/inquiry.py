"""What a handler may wait for: an ASK, and how its ANSWER becomes the result of the call."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Generic, Protocol, TypeVar
from warnings import warn

import orjson

from apc_agents.emitting.draft import Destination, Draft
from apc_agents.waiting.recorded_outcomes import decode_error
from apc_contracts.packet import MAX_TTL_MS, Packet, Recipient
from apc_contracts.payloads.questions import AnswerOutcome, AnswerSpec

ResultT_co = TypeVar("ResultT_co", covariant=True)
End = dict[str, Any]
"""How an ASK ended, as the records keep it."""
LONGEST_TTL = timedelta(milliseconds=MAX_TTL_MS)


class Inquiry(Protocol[ResultT_co]):
    """One ASK of a wait."""

    @property
    def op(self) -> str:
        """The name of the call of `ctx`."""
        ...

    def subject(self) -> str:
        """Return the text by which the same inquiry is recognised in another run."""
        ...

    def draft(self, now: datetime) -> Draft:
        """Return the ASK."""
        ...

    def outcome(self, end: End, ask: Packet) -> ResultT_co:
        """Return, or raise, what the handler gets."""
        ...


class Pending(Generic[ResultT_co]):
    """Something to wait for: await it, or give several to `ctx.gather`. Nothing is asked before that."""

    def __init__(
        self, inquiry: Inquiry[ResultT_co], begin: Callable[[Sequence[Inquiry[Any]]], Awaitable[Sequence[Any]]]
    ) -> None:
        self._inquiry = inquiry
        self._begin = begin
        self._is_used = False

    def __await__(self) -> Generator[Any, None, ResultT_co]:
        """Ask, and wait; in the run that follows the answer, return or raise what it came to."""
        (result,) = yield from self._begin([self.take()]).__await__()
        return result  # type: ignore[no-any-return]

    def take(self) -> Inquiry[ResultT_co]:
        """Return what is to be asked."""
        self._is_used = True
        return self._inquiry

    def __del__(self) -> None:
        """Warn of a wait that nobody awaited, as Python does of a coroutine."""
        if not self._is_used:
            warn(f"ctx.{self._inquiry.op} was never awaited: nothing was asked", RuntimeWarning, stacklevel=2)


def digest_of(*said: Any) -> str:
    """Return a short digest of JSON values."""
    return sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:16]


def names_of(to: Destination) -> list[str]:
    """Return the ids of a destination."""
    listed = (to,) if isinstance(to, str | Recipient) else to
    return [one.agent_id if isinstance(one, Recipient) else str(one) for one in listed]


def end_of(answer: Packet, said: AnswerSpec) -> End:
    """Return an ANSWER as the records keep it."""
    return {
        "outcome": said.outcome.value,
        "by": answer.sender.agent_id,
        "note": said.note,
        "at": answer.created_at.isoformat(),
        "id": str(answer.packet_id),
        "result": None if said.result is None else dict(said.result.content),
    }


def outcome_of(op: str, end: End) -> AnswerOutcome:
    """Return how an ASK ended. Raises what the gate refused it with."""
    if "raised" in end:
        raise decode_error(op, end["raised"])
    return AnswerOutcome(end["outcome"])
