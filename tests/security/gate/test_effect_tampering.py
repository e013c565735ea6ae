"""Tamperings with the entries about an effect, each rolled back: the log's tree finds them all, a replay most."""

from collections.abc import Callable
from uuid import UUID

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_effects import delivered, entry_of, report
from tests.support.log import disable_guards, replay_everything

from apc_bus.settings import PersisterSettings
from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.receipts import EffectEntry
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

Build = Callable[..., Packet]
TABLE = "apc_log.packet_events"
TAMPERINGS = {
    "said to be made": ("""metadata = jsonb_set(metadata, '{effect,entry}', '"made"')""", True),
    "another claim": (f"""metadata = jsonb_set(metadata, '{{effect,claim}}', '"{UUID(int=9)}"')""", False),
    "another reason": ("""metadata = jsonb_set(metadata, '{effect,note}', '"why"')""", False),
    "another agent": ("recipient = 'blue-1', actor = 'blue-1'", True),
    "another number": ("attempt = -7", True),
    "an event of a delivery": ("events = '{outcome}'", True),
    "a move": ("to_state = 'ARCHIVED'", True),
    "nothing left of it": ("metadata = '{}'", True),
}
"""What is changed of the entry, and whether a replay finds that: what an agent has said is an input of it."""


@pytest.mark.parametrize(("change", "is_replayed"), TAMPERINGS.values(), ids=TAMPERINGS.keys())
async def test_a_tampering_with_an_effect_is_found(
    house: House, packet: Build, start: Build, idea: IdeaPayload, change: str, is_replayed: bool
) -> None:
    async with house.persister(), house.gate():
        await house.open(start())
        sent = await delivered(house, packet, idea)
        await report(house, entry_of(sent, EffectEntry.CLAIMED), entry_of(sent, EffectEntry.UNKNOWN, note="it died"))
    await disable_guards(house.pool)
    key = load_signer(PersisterSettings()).public_key(0)
    before = await house.pool.fetchrow(f"SELECT * FROM {TABLE} WHERE attempt = -2")
    async with house.pool.acquire() as connection:
        assert (await verify_shard(connection, 0, key)).findings == []
        assert await connection.execute(f"UPDATE {TABLE} SET {change} WHERE attempt = -2") == "UPDATE 1"
        found = (await verify_shard(connection, 0, key)).findings
    assert found and found[0].place
    if is_replayed:
        with pytest.raises(AssertionError):
            await replay_everything(house.pool)
    assert before is not None
    columns = ", ".join(f"{name} = ${number}" for number, name in enumerate(before.keys(), 1))
    await house.pool.execute(f"UPDATE {TABLE} SET {columns} WHERE seq = {before['seq']}", *before.values())
