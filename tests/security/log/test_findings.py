"""One cause is one finding, which names what was changed: the entry, the tile, the edge, the row beside the log."""

from hashlib import sha256

import pytest
from tests.persister.evidence.conftest import CONTRACT, WrittenLog, written
from tests.support.log import LogBench, disable_guards

from apc_cli.doctor.log import look_at_evidence
from apc_contracts.replay.entries import ReplayDiffers
from apc_persister.errors import ProofImpossible
from apc_persister.evidence.documents import bundle_lines
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import LogFinding
from apc_persister.verification.sessions import _difference

__all__ = ["written"]

SINGLE = {
    "the edge deleted": ("DELETE FROM apc_log.log_edges", "log_edges", "no row of this shard"),
    "the edge set back": ("UPDATE apc_log.log_edges SET tree_size = 0, hashes = '{}'", "log_edges", "0 entries"),
    "a leaf in the edge": (
        "UPDATE apc_log.log_edges SET hashes[1] = set_byte(hashes[1], 0, 255 - get_byte(hashes[1], 0))",
        "log_edges",
        "the stored edge of the tree differs",
    ),
    "a leaf in a tile": (
        "UPDATE apc_log.log_tiles SET hashes = set_byte(hashes, 288, 255 - get_byte(hashes, 288)) WHERE index = 1",
        "log_tiles 0/1",
        "tile 0/1 was changed: the entries below it fit",
    ),
    "a root": (
        "UPDATE apc_log.log_checkpoints SET root_hash = sha256('x') WHERE tree_size = 404",
        "log_checkpoints 404",
        "column root_hash of the stored checkpoint of 404 entries is not what its note says",
    ),
    "the head deleted": ("DELETE FROM apc_log.shards", "shards", "no row of shard 0"),
}


@pytest.mark.parametrize("name", SINGLE)
async def test_one_change_is_one_finding_that_names_it(written: WrittenLog, name: str) -> None:
    act, place, words = SINGLE[name]
    await disable_guards(written.pool)
    await written.pool.execute(act)
    for outside in (True, False):
        (finding,) = (await written.verify(outside=outside)).findings
        assert finding.place == place and words in finding.message, finding


async def test_an_entry_that_was_changed_is_named_beside_its_tile(written: WrittenLog) -> None:
    await disable_guards(written.pool)
    await written.pool.execute("UPDATE apc_log.packet_events SET actor = 'somebody' WHERE seq IN (302, 602)")
    findings = (await written.verify()).findings
    assert [one.place for one in findings if "differs from its leaf" in one.message] == ["entry 302", "entry 602"]


WAITING = "INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, recorded_at, kind, actor, detail) VALUES "
HEAD = "UPDATE apc_log.shards SET next_seq = next_seq + 1"


@pytest.mark.parametrize(
    ("recorded_at", "is_found"),
    [("now()", False), ("now() - interval '11 minutes'", True), ("now() + interval '11 minutes'", True)],
)
async def test_what_no_writer_signs_in_time_is_a_finding(written: WrittenLog, recorded_at: str, is_found: bool) -> None:
    await disable_guards(written.pool)
    await written.pool.execute(f"{WAITING} (0, 607, 1, 3, {recorded_at}, 'erasure', 'nobody', '{{}}'); {HEAD}")
    report = await written.verify()
    assert report.pending == 1
    assert [one.place for one in report.findings] == (["entry 607"] if is_found else [])
    ends = [one for one in await look_at_evidence(written.pool) if one.check == "log end"]
    assert any("no log writer has signed it" in one.finding for one in ends) is is_found


async def derived(log: WrittenLog | LogBench) -> list[LogFinding]:
    async with log.pool.acquire() as connection:
        return await compare_derived(connection)


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("UPDATE apc_log.packet_ids SET packet_hash = sha256('x') WHERE seq = 1", "column packet_hash is"),
        ("DELETE FROM apc_log.packet_ids WHERE seq = 1", "the row is missing"),
        (
            "INSERT INTO apc_log.task_tallies (shard, run_id, task_id, evals) VALUES (0, 'run-1', 'task-9', 1)",
            "task_tallies shard=0, run_id=run-1, task_id=task-9: the row follows from no entry",
        ),
    ],
)
async def test_a_row_beside_the_log_is_named_with_its_column(written: WrittenLog, act: str, words: str) -> None:
    assert await derived(written) == []
    await disable_guards(written.pool)
    await written.pool.execute(act)
    (finding,) = await derived(written)
    assert words in finding.message and "hello" not in finding.message
    assert finding.message.startswith(f"{finding.place}: ")


def test_a_finding_about_a_session_prints_no_text_that_somebody_wrote() -> None:
    said = "VETO by red-1: the customer's card is 4111"
    for recorded, recomputed in ((said, "x"), ("x", said), ({"note": said}, {})):
        message = _difference(ReplayDiffers(0, 7, "sessions.document.halt_reason", recorded, recomputed))
        assert message == "entry 0/7, sessions.document.halt_reason is not what the entries say"
    assert "is 7, the entries say 8" in _difference(ReplayDiffers(0, 7, "sessions.document.step", 7, 8))


async def test_a_bundle_with_a_changed_contract_is_not_written(written: WrittenLog) -> None:
    keep = "INSERT INTO apc_log.contracts (contract_hash, document) VALUES ($1, $2)"
    await written.pool.execute(keep, sha256(CONTRACT).digest(), CONTRACT)
    async with written.pool.acquire() as connection:
        assert await anext(bundle_lines(connection, "run-2", written.signer, []))
    await disable_guards(written.pool)
    checks = "SELECT conname FROM pg_constraint WHERE conrelid = 'apc_log.contracts'::regclass AND contype = 'c'"
    for (name,) in await written.pool.fetch(checks):
        await written.pool.execute(f'ALTER TABLE apc_log.contracts DROP CONSTRAINT "{name}"')
    await written.pool.execute("UPDATE apc_log.contracts SET document = '{}'")
    async with written.pool.acquire() as connection:
        for given in ([], [CONTRACT]):
            with pytest.raises(ProofImpossible, match="do not have this hash, so nothing is exported"):
                await anext(bundle_lines(connection, "run-2", written.signer, given))
