"""What a viewer sees, and which role each route needs.

What is shown is an allow-list of columns. What is not listed is left empty, so a new column begins hidden. Left out are
bodies, facts, and every text that tells of them: refusal messages, errors of handlers, notes, questions.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar, cast

from fastapi import Depends
from fastapi.routing import APIRoute

from apc_web.access import AccountRole, caller, require
from apc_web.models import ApiModel

Model = TypeVar("Model", bound=ApiModel)
_PACKET = """shard seq packet_id packet_type session_id run_id task_id run_phase round generation step
            sender sender_role sender_swarm recipients judged_at verdict refusal_code state
            parent_packet_id cause_packet_id is_stale"""
_SESSION = """session_id run_id task_id shard state run_phase is_terminal is_paused round generation
            open_deliveries spent opened_at updated_at"""
COLUMNS: Mapping[str, frozenset[str]] = {
    name: frozenset(fields.split())
    for name, fields in {
        "AgentList": "items is_complete words",
        "AgentQuota": "packets_per_second burst",
        "AgentSummary": """agent_id kind role swarm rights handles broker_user is_revoked keys last_seen is_alive
            open_deliveries most_open quota waiting consumers""",
        "ApprovalList": "items",
        "ArbitrationGroup": "name arbitrations candidates selected refused mean_score",
        "ArbitrationOption": "candidate_id packet_ids total_score score_components refused_with rank is_winner",
        "ArbitrationPage": "items next",
        "ArbitrationStatistics": """looked_at is_complete subjects codes mean_margin margins swarms protocols
            runs generations diversity""",
        "ArbitrationSummary": """judged_at shard seq packet_id session_id run_id task_id round generation step
            arbitration_id
            subject winner_candidate_id selected margin candidates""",
        "BudgetPart": "task resource limit spent left",
        "CausalTree": "items is_cut",
        "CheckpointList": "items",
        "DeadLetterDetail": """session_id run_id task_id packet_id packet_type sender recipient attempt
            died_at expires_at
            can_requeue attempts""",
        "DeadLetterPage": "items next",
        "DeliveryAttempt": "attempt from_state to_state events at actor",
        "EffectList": "items",
        "EffectSummary": "packet_id agent_id key state session_id worker claimed_at made_at settled_by",
        "FoldEntry": """shard seq kind session_id run_id at packet_id packet_type sender recipients recipient verdict
            refusal_code run_phase round generation step cause_packet_id parent_packet_id event from_state
            to_state attempt usage signal""",
        "GenerationDiversity": "generation runs candidates mean_swarms mean_protocols",
        "GenerationScore": "seq at packet_id agent swarm round generation verdict outcome drift_risk",
        "GenerationTransfer": "seq at packet_id round generation protocol_id from_swarm to_swarm verdict refusal_code",
        "HeldPacketSummary": "packet_id packet_type sender since",
        "ImpactAnswer": "packet items total",
        "LogPlace": "shard seq",
        "MachineEdge": "event from_state to_state",
        "MachineState": "name run_phase is_terminal",
        "NamedCount": "name count",
        "OpenApproval": """packet_id session_id run_id task_id asker may_answer answer_as role payload_hash asked_at
            due_at""",
        "PacketDetail": _PACKET
        + """ root_packet_id channel confidence created_at expires_at recorded_at ruling is_sealed body_bytes
            packet_hash user_id has_signature hops lifecycle causes effects stale_because other_sessions""",
        "PacketHop": "seq recipient attempt event from_state to_state at actor",
        "PacketLink": "shard seq packet_id packet_type sender verdict edge",
        "PacketPage": "items next looked_at is_complete",
        "PacketSummary": _PACKET,
        "ProtocolList": "items",
        "ProtocolSummary": """protocol_id transfers accepted runs tasks acceptance_rate average_outcome
            average_drift_risk
            effectiveness outcome_lift drift_delta last_seen_at roots blocked_at blocked_until blocked_by""",
        "RestingPacket": """shard seq packet_id packet_type sender run_phase round generation judged_at is_stale
            is_retracted""",
        "RunPage": "items next",
        "RunSummary": "run_id sessions running states session_ids spent open_deliveries updated_at",
        "ServerAbout": """version can_act why_not can_chat why_no_chat database run_id user role has_accounts""",
        "SessionAt": """session_id shard seq at state run_phase is_paused round generation step entries packets
            verdicts types refusals sent deliveries spent budgets swarms""",
        "SessionDeadline": "kind due",
        "SessionDetail": _SESSION
        + """ step generation_limit max_rounds opener paused_at first_seq last_seq packets verdicts refusals
            dead waits budgets members deadlines held machine""",
        "SessionMachine": "states edges",
        "SessionMember": "agent_id swarm is_live",
        "SessionMove": "seq at event from_state to_state round generation step cause_packet_id",
        "SessionMoves": "items next",
        "SessionPage": "items next",
        "SessionScores": "scores transfers is_cut",
        "SessionSummary": _SESSION,
        "SessionWait": "kind words due agents packet_ids",
        "ShardCheckpoint": "shard epoch next_seq tree_size root_hash note recorded_at exported exported_at",
        "FiringAlert": "name severity words",
        "ServiceHealth": "service shard state waiting delay_seconds words",
        "SystemHealth": "looked_at is_complete words services agents alive alerts",
        "StreamEntries": "heads items",
        "StreamReset": "heads",
        "StreamState": "is_readable",
        "TaskList": "items",
        "TaskSummary": """task_id agent_id session_id action status progress attempt created_at started_at
            finished_at""",
        "TreeNode": """shard seq packet_id packet_type sender recipients run_phase generation verdict refusal_code
            judged_at above edge depth""",
        "VerdictWords": "verdict code rule words remedy retry_after_ms judged_at contract_hash",
    }.items()
}
"""Model -> the columns of it that every viewer sees."""


def narrowed(model: Model) -> Model:
    """Return a model with what a viewer may see; everything else is empty."""
    shown = {name: _shown(model, name) for name in type(model).model_fields}
    return cast(Model, type(model).model_construct(**shown))


def _shown(model: ApiModel, name: str) -> Any:
    value = getattr(model, name)
    return _inner(value) if name in COLUMNS.get(type(model).__name__, ()) else _empty(value)


def _inner(value: Any) -> Any:
    if isinstance(value, ApiModel):
        return narrowed(value)
    if isinstance(value, list):
        return [_inner(one) for one in value]
    return value


def _empty(value: Any) -> Any:
    """Return what stands in the place of a hidden value: of its kind, so that the document of the API holds."""
    return type(value)() if isinstance(value, str | list | dict | int | float) else None


_OPERATOR = frozenset(
    {"settle_dead", "signal_session", "answer_question", "list_chats", "begin_chat", "get_chat", "delete_chat", "say"}
    | {"stop_answer", "compress_chat", "clear_chat", "list_chat_tasks", "get_history", "get_chat_events"}
    | {"start_verification", "cancel_verification"}
)
_READER = frozenset({"get_body", "get_proof", "get_consistency", "get_verification"})
_NOBODY = frozenset({"login", "logout"})
_VIEWER = frozenset(
    {"list_runs", "get_run", "list_sessions", "get_session", "list_moves", "get_scores", "get_timeline", "get_stream"}
    | {"get_session_at", "list_packets", "get_packet", "get_tree", "get_impact", "list_arbitrations", "get_statistics"}
    | {"list_protocols", "list_dead", "list_approvals", "list_effects", "list_tasks", "list_agents", "get_about"}
    | {"list_checkpoints", "get_graph", "get_system"}
)
"""What a viewer may ask; of a model they see the columns of `viewer`, of `get_timeline` columns alone."""


def role_of(name: str) -> AccountRole | None:
    """Return the role that a route needs; None = none, it is for who is not logged in. Raises KeyError for others."""
    for role, names in {
        AccountRole.VIEWER: _VIEWER,
        AccountRole.READER: _READER,
        AccountRole.OPERATOR: _OPERATOR,
        None: _NOBODY,
    }.items():
        if name in names:
            return role
    raise KeyError(name)


class RoleRoute(APIRoute):
    """A route that asks for its role, and shows a viewer what a viewer may see."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        role = role_of(endpoint.__name__)
        if role is not None:

            async def asked() -> None:
                require(role)

            options["dependencies"] = [Depends(asked), *(options.get("dependencies") or ())]
        super().__init__(path, _narrowed(endpoint), **options)


def _narrowed(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(endpoint)
    async def shown(*arguments: Any, **named: Any) -> Any:
        if caller().role is AccountRole.VIEWER and named.get("text") is not None:
            require(AccountRole.READER)  # whether a text is found tells what the bodies hold
        answer = await endpoint(*arguments, **named)
        return narrowed(answer) if caller().role is AccountRole.VIEWER and isinstance(answer, ApiModel) else answer

    return shown
