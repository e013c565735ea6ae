"""Sessions as pure policy: a state document, the packets in flight, and `advance`, which moves both.

Orchestrator, replay and tests call the same functions; nothing here reads a clock, a queue or a database.
"""

from apc_contracts.judging.session_view import Identity, SessionView
from apc_contracts.session.advance import Advanced, advance, confirm_substrate, halted_by_refusal
from apc_contracts.session.document import SessionDocument, decode_document
from apc_contracts.session.emissions import timer
from apc_contracts.session.knowledge import decay_packet, recount_contents
from apc_contracts.session.lifecycle import handles, resolve_recipients
from apc_contracts.session.opening import open_session
from apc_contracts.session.promotion import completion_of
from apc_contracts.session.session import HeldPacket, OpenPacket, Progress, Session
from apc_contracts.session.session_effects import (
    Denial,
    Effects,
    FinalVerdict,
    Hop,
    PacketInput,
    ReceiptsInput,
    ReleaseInput,
    Route,
    Transition,
    Verification,
)
from apc_contracts.session.timers import timer_kind
from apc_contracts.session.verdicts import hops_without_session, identity_without_session

__all__ = [
    "Advanced",
    "Denial",
    "Effects",
    "FinalVerdict",
    "HeldPacket",
    "Hop",
    "Identity",
    "OpenPacket",
    "PacketInput",
    "Progress",
    "ReceiptsInput",
    "ReleaseInput",
    "Route",
    "Session",
    "SessionDocument",
    "SessionView",
    "Transition",
    "Verification",
    "advance",
    "completion_of",
    "confirm_substrate",
    "decay_packet",
    "decode_document",
    "halted_by_refusal",
    "handles",
    "hops_without_session",
    "identity_without_session",
    "open_session",
    "recount_contents",
    "resolve_recipients",
    "timer",
    "timer_kind",
]
