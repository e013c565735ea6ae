"""The closed lists of APC/1.0 (docs/specification/contract.md sections 1 and 3)."""

from collections.abc import Mapping
from enum import StrEnum

PROTOCOL_VERSION = "apc/1.0"
"""The version of the research protocol, and of every packet that needs nothing newer."""
PROTOCOL_1_1 = "apc/1.1"
"""apc/1.0, sessions that name their contract, and typed messages (docs/reference/protocol.md)."""
PROTOCOL_VERSIONS = (PROTOCOL_VERSION, PROTOCOL_1_1)
HOST_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,31}$"
"""What the id of a host looks like: one word of a routing key, which needs no encoding."""


class PacketType(StrEnum):
    """The packet types: 14 of apc/1.0, and MESSAGE of apc/1.1."""

    TASK_IR = "TASK_IR"
    IDEA = "IDEA"
    CLAIM = "CLAIM"
    ARTIFACT = "ARTIFACT"
    SIGNAL = "SIGNAL"
    EVAL = "EVAL"
    TRANSFER = "TRANSFER"
    ARBITRATION = "ARBITRATION"
    DECISION = "DECISION"
    RETRACTION = "RETRACTION"
    ACK = "ACK"
    NACK = "NACK"
    ERROR = "ERROR"
    HEARTBEAT = "HEARTBEAT"
    MESSAGE = "MESSAGE"


CONTROL_TYPES = frozenset(
    {
        PacketType.SIGNAL,
        PacketType.HEARTBEAT,
        PacketType.ACK,
        PacketType.NACK,
        PacketType.ERROR,
        PacketType.RETRACTION,
    }
)
"""Legal in every phase, handled by every agent, delivered through the urgent queue."""


TYPES_OF_1_1 = frozenset({PacketType.MESSAGE})
"""Packet types that apc/1.0 does not have."""


class Channel(StrEnum):
    """Between agents, or between the modules of one agent."""

    INTER_AGENT = "INTER_AGENT"
    INTRA_AGENT = "INTRA_AGENT"


class RunPhase(StrEnum):
    """The phase of a run; a function of the session's state."""

    RESEARCH = "RESEARCH"
    DISCOVERY = "DISCOVERY"
    REFINEMENT = "REFINEMENT"
    CONVERGENCE = "CONVERGENCE"
    ARBITRATION = "ARBITRATION"
    EXECUTION = "EXECUTION"
    VALIDATION = "VALIDATION"
    PROMOTION = "PROMOTION"


class DeliveryMode(StrEnum):
    """How a packet reaches its recipients."""

    DIRECT = "DIRECT"
    MULTICAST = "MULTICAST"
    BROADCAST = "BROADCAST"
    SUBSTRATE = "SUBSTRATE"


class TransferMode(StrEnum):
    """How protocol knowledge moves between swarms."""

    WINNER_TO_LOSERS = "WINNER_TO_LOSERS"
    CROSS_USE_CASE = "CROSS_USE_CASE"
    COMMONS_SEED = "COMMONS_SEED"
    SELECTIVE_IMPORT = "SELECTIVE_IMPORT"


class Signal(StrEnum):
    """The control-plane signals."""

    START = "START"
    PAUSE = "PAUSE"
    RESUME = "RESUME"
    QUERY = "QUERY"
    SYNC = "SYNC"
    STOP = "STOP"
    HEARTBEAT = "HEARTBEAT"
    READY_FOR_TRANSFER = "READY_FOR_TRANSFER"
    RETRY = "RETRY"
    CANCEL = "CANCEL"
    VETO = "VETO"
    ASK = "ASK"
    ANSWER = "ANSWER"
    WAKE = "WAKE"


FIELDS_OF_SIGNAL: Mapping[Signal, tuple[str, ...]] = {
    Signal.ASK: ("question", "request"),
    Signal.ANSWER: ("answer",),
    Signal.WAKE: ("wake",),
}
"""The fields of a signal of apc/1.1; its payload has one of them."""
SIGNALS_OF_1_1 = frozenset(FIELDS_OF_SIGNAL)
"""Signals that apc/1.0 does not have."""


class ArtifactKind(StrEnum):
    """What an ARTIFACT refers to."""

    CODE_PATCH = "CODE_PATCH"
    MODEL_SNAPSHOT = "MODEL_SNAPSHOT"
    FEATURE_SET = "FEATURE_SET"
    DATASET_SLICE = "DATASET_SLICE"
    METRIC_REPORT = "METRIC_REPORT"
    EXECUTION_LOG = "EXECUTION_LOG"
    PROTOCOL = "PROTOCOL"


class AckStatus(StrEnum):
    """ACK carries ACCEPTED or DEFERRED, NACK carries REJECTED or DEFERRED."""

    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    DEFERRED = "DEFERRED"


class CommitmentLevel(StrEnum):
    """How far a DECISION is committed."""

    PROPOSED = "PROPOSED"
    APPROVED = "APPROVED"
    EXECUTING = "EXECUTING"
    DONE = "DONE"


HANDLER_ERROR = "HANDLER_ERROR"
"""Code of the ERROR of an agent whose handler failed permanently."""
WAITED = "waited"
"""Key in `details` of such an ERROR: the handler had waited, so its delivery has ended. The receipt may come later."""
EFFECT_UNKNOWN = "EFFECT_UNKNOWN"
CONTINUATION_DIVERGED = "CONTINUATION_DIVERGED"
UNSETTLED = frozenset({EFFECT_UNKNOWN, CONTINUATION_DIVERGED})
"""Codes of ERRORs whose dead letter never halts a session of the coordinator `task`: it is requeued or discarded."""

ALL_RECIPIENTS = "_all"
"""The one recipient of a BROADCAST."""
SUBSTRATE_RECIPIENT = "_substrate"
"""The one recipient of a SUBSTRATE packet."""
PRESENCE_SESSION = "_presence"
"""The reserved session of HEARTBEAT."""
ORCHESTRATOR = "orchestrator"
"""The agent_id of the orchestrator itself; reserved."""


class Right(StrEnum):
    """What an operator may grant to an agent (docs/specification/contract.md section 10)."""

    OPERATE = "operate"
    DECIDE = "decide"
    VALIDATE = "validate"
    VETO = "veto"
    SCHEDULE = "schedule"
    """To open the sessions of the schedules that the agent has, and no others."""
