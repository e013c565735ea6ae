"""Routes of packets: list, detail, bytes, causes, effects, proof."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from apc_contracts.vocabulary import PacketType, RunPhase
from apc_web.access.route_roles import RoleRoute
from apc_web.models.packets import CausalTree, ImpactAnswer, InclusionProof, PacketDetail, PacketPage
from apc_web.parameters import After, Code, InSession, Limit, OfRun, OfSession, OfTask, Order, PacketName
from apc_web.reading import graph, packet, packets
from apc_web.route_services import Serving
from apc_web.verifying.proof_files import proof_of

router = APIRouter(tags=["packets"], route_class=RoleRoute)
_NAME = r"^[^\x00]{1,256}$"
_UUID = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_MOST = 2_147_483_647


@router.get("/packets", response_model=PacketPage)
async def list_packets(
    services: Serving,
    *,
    run_id: OfRun = None,
    session_id: OfSession = None,
    task_id: OfTask = None,
    packet_type: Annotated[PacketType | None, Query(description="Only of this type.")] = None,
    run_phase: Annotated[RunPhase | None, Query(description="Only of this phase.")] = None,
    trace_id: Annotated[str | None, Query(pattern=_UUID, description="Only of the chain of this root packet.")] = None,
    sender: Annotated[str | None, Query(pattern=_NAME, description="Only of this agent. Needs a scope.")] = None,
    recipient: Annotated[str | None, Query(pattern=_NAME, description="Only for this agent. Needs a scope.")] = None,
    verdict: Annotated[
        Literal["accepted", "refused", "held"] | None, Query(description="Only with this verdict. Needs a scope.")
    ] = None,
    refusal_code: Code = None,
    generation: Annotated[int | None, Query(ge=0, le=_MOST, description="Needs a scope.")] = None,
    round: Annotated[int | None, Query(ge=0, le=_MOST, description="Needs a scope.")] = None,
    text: Annotated[
        str | None, Query(min_length=2, max_length=200, pattern=_NAME, description="Only with this text in the packet.")
    ] = None,
    order: Order = "oldest",
    after: After = None,
    limit: Limit = 100,
) -> PacketPage:
    """Return packets that match every filter.

    A filter that needs a scope wants `run_id`, `session_id` or `task_id` beside it. A search looks at 20,000 packets
    or for 2 s at most, says when it stopped, and goes on from `next`.
    """
    given = {
        "run_id": run_id,
        "session_id": session_id,
        "task_id": task_id,
        "packet_type": packet_type,
        "run_phase": run_phase,
        "trace_id": trace_id,
        "sender": sender,
        "recipient": recipient,
        "verdict": verdict,
        "refusal_code": refusal_code,
        "generation": generation,
        "round": round,
    }
    query = packets.PacketQuery.of(given, text=text, newest=order == "newest")
    return await packets.packets_page(services.pool, query, after, limit)


@router.get("/packets/{packet_id}", response_model=PacketDetail)
async def get_packet(services: Serving, packet_id: PacketName, session: InSession = None) -> PacketDetail:
    """Return one packet with its verdict in words, the facts it was judged by, hops, causes and effects."""
    return await packet.packet_detail(services, packet_id, session)


@router.get(
    "/packets/{packet_id}/body",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The stored bytes."}},
)
async def get_body(services: Serving, packet_id: PacketName, session: InSession = None) -> Response:
    """Return the bytes of a packet exactly as they are stored; encrypted ones stay encrypted."""
    body = await packet.packet_body(services, packet_id, session)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type="application/octet-stream", headers=headers)


@router.get("/packets/{packet_id}/tree", response_model=CausalTree)
async def get_tree(
    services: Serving,
    packet_id: PacketName,
    session: InSession = None,
    limit: Annotated[int, Query(ge=1, le=2_000, description="At most this many packets.")] = 300,
) -> CausalTree:
    """Return what a packet has caused, level by level."""
    return await graph.causal_tree(services, packet_id, session, limit)


@router.get("/packets/{packet_id}/impact", response_model=ImpactAnswer)
async def get_impact(
    services: Serving,
    packet_id: PacketName,
    session: InSession = None,
    limit: Annotated[int, Query(ge=1, le=2_000, description="At most this many packets.")] = 500,
) -> ImpactAnswer:
    """Return what rests on a packet: what its retraction would mark stale."""
    return await graph.impact_of(services, packet_id, session, limit)


@router.get("/packets/{packet_id}/proof", response_model=InclusionProof)
async def get_proof(services: Serving, packet_id: PacketName, session: InSession = None) -> InclusionProof:
    """Return the proof that the packet is in the log, as `apc log check` reads it."""
    return await proof_of(services, packet_id, session)
