"""Proofs as files: that a packet is in the log, and that the log extends an earlier checkpoint of it."""

from apc_log.offline_verifier import PublicKey
from apc_log.queries.health import list_shard_ends
from apc_persister.evidence.documents import find_packet, prove_consistency, prove_entry
from apc_web.errors import ApiError, not_found
from apc_web.models.log import ConsistencyProof
from apc_web.models.packets import InclusionProof
from apc_web.reading.packet import find_key
from apc_web.route_services import Services


async def proof_of(services: Services, name: str, session: str | None) -> InclusionProof:
    """Return the proof that a packet is in the log. Raises ApiError, ProofImpossible, TreeBroken."""
    key = await find_key(services, name, session)
    async with services.pool.acquire() as connection:
        shard, seq = await find_packet(connection, key.packet_id, key.session_id)
        document = await prove_entry(connection, _key(services, shard), shard, seq)
    return InclusionProof.model_validate(document)


async def consistency_of(services: Services, shard: int, old: int | None, new: int | None) -> ConsistencyProof:
    """Return the proof that the log of a shard extends an earlier one.

    By default the newest checkpoint extends the exported one. Raises ApiError, ProofImpossible, TreeBroken.
    """
    end = next((one for one in await list_shard_ends(services.pool) if one.shard == shard), None)
    if end is None:
        raise not_found(f"shard {shard}", "take one that `GET /log/checkpoints` lists", "shard")
    first, last = old or end.exported, new or end.tree_size
    if not first or last is None:  # 0: an export has begun
        raise ApiError(409, "NO_CHECKPOINT", "no checkpoint was exported yet: name an `old` size", "old")
    async with services.pool.acquire() as connection:
        document = await prove_consistency(connection, _key(services, shard), shard, first, last)
    return ConsistencyProof.model_validate(document)


def _key(services: Services, shard: int) -> PublicKey:
    found = services.key_of(shard)
    if found is None:
        words = "this server does not know the log's public key: set APC_LOG_KEY_FILE, or use `apc log prove --key`"
        raise ApiError(409, "NO_LOG_KEY", words)
    return found
