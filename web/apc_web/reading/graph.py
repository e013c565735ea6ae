"""What a packet has caused, what rests on it, and the proof that the log holds it."""

from uuid import UUID

from apc_log.queries import get_packet_impact, get_packet_tree
from apc_web.errors import not_found
from apc_web.models.model_base import LogPlace
from apc_web.models.packets import CausalTree, ImpactAnswer, RestingPacket, TreeNode
from apc_web.reading.packet import find_key
from apc_web.route_services import Services


async def causal_tree(services: Services, name: str, session: str | None, limit: int) -> CausalTree:
    """Return what a packet has caused. Raises ApiError when there is none."""
    key = await find_key(services, name, session)
    tree = await get_packet_tree(services.pool, key.packet_id, session_id=key.session_id, limit=limit)
    if tree is None:
        raise not_found(f"packet {key.packet_id}", "take an id that `GET /packets` lists", "packet_id")
    depths: dict[UUID, int] = {}
    nodes = []
    for row in tree.rows:
        depths[row.packet_id] = 0 if row.above is None else depths[row.above] + 1
        nodes.append(
            TreeNode(
                shard=row.shard,
                seq=row.seq,
                packet_id=row.packet_id,
                packet_type=row.packet_type,
                sender=row.sender_agent_id,
                recipients=row.recipients,
                run_phase=row.run_phase,
                generation=row.generation,
                verdict=row.verdict,
                refusal_code=row.refusal_code,
                judged_at=row.judged_at,
                above=row.above,
                edge=row.edge,
                depth=depths[row.packet_id],
            )
        )
    return CausalTree(items=nodes, is_cut=tree.is_cut)


async def impact_of(services: Services, name: str, session: str | None, limit: int) -> ImpactAnswer:
    """Return what rests on a packet. Raises ApiError when there is none."""
    key = await find_key(services, name, session)
    rests_on_nothing = services.contract.retraction.rests_on_nothing
    impact = await get_packet_impact(
        services.pool, key.packet_id, session_id=key.session_id, rests_on_nothing=rests_on_nothing
    )
    if impact is None:
        raise not_found(f"packet {key.packet_id}", "take an id that `GET /packets` lists", "packet_id")
    items = [
        RestingPacket(
            shard=row.shard,
            seq=row.seq,
            packet_id=row.packet_id,
            packet_type=row.packet_type,
            sender=row.sender_agent_id,
            run_phase=row.run_phase,
            round=row.round,
            generation=row.generation,
            judged_at=row.judged_at,
            is_stale=row.is_stale,
            is_retracted=row.is_retracted,
        )
        for row in impact.resting[:limit]
    ]
    place = LogPlace(shard=impact.packet.shard, seq=impact.packet.seq)
    return ImpactAnswer(packet=place, items=items, total=len(impact.resting))
