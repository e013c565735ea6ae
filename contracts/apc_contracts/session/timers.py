"""Deadlines: a timer packet reports that one has passed.

Source: docs/specification/contract.md section 10, Timers are packets.
"""

from collections.abc import Callable

from apc_contracts.identity.ids import timer_id
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.session import acknowledgements, promotion, task
from apc_contracts.session.movement import Advance
from apc_contracts.session.session import Session

_REASON = "deadline "
"""How the reason of a timer packet begins; its kind follows."""


def timer_kind(session: Session, packet: Packet) -> str | None:
    """Return the running deadline that a timer packet stands for, proven by its id; None when there is none."""
    payload = packet.payload
    kind = (payload.reason or "").removeprefix(_REASON) if isinstance(payload, SignalFields) else ""
    is_running = kind in session.document.deadlines
    return kind if is_running and timer_id(session.session_id, session.step, kind) == packet.packet_id else None


def expire(moment: Advance, packet: Packet) -> None:
    """Remove a deadline and do what it stands for."""
    kind = timer_kind(moment.session, packet)
    if kind is None:
        return
    del moment.session.document.deadlines[kind]
    awaited, asked, wake = (
        find(kind) for find in (acknowledgements.packet_of_timer, task.question_of_timer, task.wake_of_timer)
    )
    if asked is not None:
        task.expire_question(moment, asked)
    elif wake is not None:
        task.expire_wake(moment, wake)
    elif awaited is not None:
        acknowledgements.expire(moment, awaited)
    else:
        _EXPIRED[kind](moment)


def _generation(moment: Advance) -> None:
    moment.session.document.round_state.has_generation_expired = True


def _state(moment: Advance) -> None:
    moment.session.document.halt_reason = f"STATE_DEADLINE in {moment.session.state}"


def _wall(moment: Advance) -> None:
    moment.session.document.halt_reason = "BUDGET_EXHAUSTED wall_ms"


def _search(moment: Advance) -> None:
    """End the search with the open generation: what is verified by then is arbitrated, and no further round opens."""
    document = moment.session.document
    document.generation_limit = min(document.generation_limit, document.generation)
    document.convergence_generations = 0
    document.max_rounds = document.round


def _veto(moment: Advance) -> None:
    moment.session.document.halt_reason = promotion.end_veto_window(moment)


def _deadline(moment: Advance) -> None:
    moment.session.document.halt_reason = f"DEADLINE in {moment.session.state}"


def _open(moment: Advance) -> None:
    opener = moment.session.document.opener
    moment.session.document.halt_reason = f"NOT_STARTED {opener} sent no work"


def _stall(moment: Advance) -> None:
    work = moment.session.work
    last = work.last_end if work is not None else ""
    moment.session.document.halt_reason = f"STALLED nothing is open; the last end: {last or 'none'}"


_EXPIRED: dict[str, Callable[[Advance], None]] = {
    "generation": _generation,
    "state": _state,
    "wall": _wall,
    "search": _search,
    "veto": _veto,
    "deadline": _deadline,
    "open": _open,
    "stall": _stall,
}
