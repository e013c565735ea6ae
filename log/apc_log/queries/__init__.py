"""Reading the log: the same functions behind the command line, the HTTP API and the console."""

from apc_log.queries.arbitrations import ArbitrationCandidate, ArbitrationRow, list_arbitrations
from apc_log.queries.dead import (
    DeadDelivery,
    DeliveryHop,
    DeliveryId,
    delivery_history,
    delivery_states,
    list_dead,
)
from apc_log.queries.invocations import InvocationRow, list_invocations
from apc_log.queries.lineage.impact import ImpactRow, PacketImpact, get_packet_impact
from apc_log.queries.lineage.packet_grounds import PacketGrounds, get_packet_grounds
from apc_log.queries.lineage.summary import (
    AfterProtocol,
    LineageSummary,
    PropagationRow,
    ProtocolEffectiveness,
    TransferCorrelation,
    TransferQuality,
    get_packet_lineage_summary,
    get_protocol_effectiveness,
    get_transfer_eval_correlation,
    get_transfer_quality_rollup,
    get_transfer_refusals,
    list_protocol_propagation,
)
from apc_log.queries.lineage.tree import PacketTree, TreeRow, get_packet_tree
from apc_log.queries.protocols import ProtocolRow, list_protocols
from apc_log.queries.replaying.bundle import BundleRecords
from apc_log.queries.replaying.recorded_sessions import DatabaseRecords, read_recorded
from apc_log.queries.replaying.replay import ReplayPage, replay, replay_page
from apc_log.queries.replaying.replay_checks import Records, Replayed, verify_run
from apc_log.queries.rows import (
    ConflictRow,
    CoordinationRow,
    LogRow,
    PacketRow,
    PacketTimeline,
    Position,
    Staleness,
    TracePage,
    TransitionRow,
)
from apc_log.queries.sessions import HeldRow, SessionRow, get_session, list_held_packets, list_sessions
from apc_log.queries.trace import get_packet_timeline, list_agent_packets, list_packet_events, trace

__all__ = [
    "AfterProtocol",
    "ArbitrationCandidate",
    "ArbitrationRow",
    "BundleRecords",
    "ConflictRow",
    "CoordinationRow",
    "DatabaseRecords",
    "DeadDelivery",
    "DeliveryHop",
    "DeliveryId",
    "HeldRow",
    "ImpactRow",
    "InvocationRow",
    "LineageSummary",
    "LogRow",
    "PacketGrounds",
    "PacketImpact",
    "PacketRow",
    "PacketTimeline",
    "PacketTree",
    "Position",
    "PropagationRow",
    "ProtocolEffectiveness",
    "ProtocolRow",
    "Records",
    "ReplayPage",
    "Replayed",
    "SessionRow",
    "Staleness",
    "TracePage",
    "TransferCorrelation",
    "TransferQuality",
    "TransitionRow",
    "TreeRow",
    "delivery_history",
    "delivery_states",
    "get_packet_grounds",
    "get_packet_impact",
    "get_packet_lineage_summary",
    "get_packet_timeline",
    "get_packet_tree",
    "get_protocol_effectiveness",
    "get_session",
    "get_transfer_eval_correlation",
    "get_transfer_quality_rollup",
    "get_transfer_refusals",
    "list_agent_packets",
    "list_arbitrations",
    "list_dead",
    "list_held_packets",
    "list_invocations",
    "list_packet_events",
    "list_protocol_propagation",
    "list_protocols",
    "list_sessions",
    "read_recorded",
    "replay",
    "replay_page",
    "trace",
    "verify_run",
]
