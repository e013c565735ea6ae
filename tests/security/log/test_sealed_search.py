"""The table of search holds no word of an encrypted body, and nothing at all of an erased subject."""

import pytest
from tests.persister.test_erasure import SECRET, encrypting, telling
from tests.support.log import LogBench, packet_entry

from apc_log.errors import SearchUnusable
from apc_log.queries.search import Wanted, search_log
from apc_persister import encryption, follower
from apc_persister.encryption import erase_subject
from apc_persister.follower import Follower

__all__ = ["encrypting"]
ROWS = "SELECT seq, is_read, words::text FROM apc_log.packet_search ORDER BY seq"


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_word_of_an_encrypted_body_is_not_found(
    encrypting: LogBench, bench: LogBench, *, is_guarded: bool
) -> None:
    log = encrypting if is_guarded else bench
    await log.gate.open()
    await log.gate.log([telling(metadata={"customer": "c-1"}), packet_entry(text="in the clear")])
    await log.write()
    if not is_guarded:
        assert len((await search_log(log.pool, Wanted("Ispahan"))).packets) == 1
        return
    found = await search_log(log.pool, Wanted("Ispahan"))
    assert found.packets == [] and found.unread == 2, "what is not searched is counted"
    assert len((await search_log(log.pool, Wanted(agent="alice"))).packets) == 1, "names are found"
    held = str(await log.pool.fetch(ROWS)) + str(await log.pool.fetch("SELECT * FROM apc_log.run_cards"))
    assert not any(word in held for word in SECRET.split()[1:])


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_nothing_of_an_erased_subject_is_found(
    encrypting: LogBench, monkeypatch: pytest.MonkeyPatch, *, is_guarded: bool
) -> None:
    """Neither now nor when the table is made again, nor from what the follower had not taken yet."""
    await encrypting.gate.open()
    await encrypting.gate.log([telling(metadata={"customer": "c-1"}), telling(metadata={"customer": "c-2"})])
    await encrypting.write()
    assert len(await encrypting.pool.fetch(ROWS)) == 2
    if not is_guarded:
        monkeypatch.setattr(encryption, "_UNLIST", "SELECT $1::uuid[]")
    async with encrypting.pool.acquire() as connection:
        await erase_subject(connection, "c-1")
    assert [row["seq"] for row in await encrypting.pool.fetch(ROWS)] == ([2] if is_guarded else [1, 2])
    if is_guarded:
        async with encrypting.pool.acquire() as connection, connection.transaction():
            await follower.empty_projections(connection)
        await Follower(encrypting.pool).catch_up()
        assert [row["seq"] for row in await encrypting.pool.fetch(ROWS)] == [2]


async def test_an_empty_search_is_refused_without_the_guard_it_lists_everything(bench: LogBench) -> None:
    await bench.gate.open()
    await bench.gate.log([packet_entry()])
    await bench.write()
    with pytest.raises(SearchUnusable):
        await search_log(bench.pool, Wanted())
    assert len(await bench.pool.fetch(ROWS)) == 1
