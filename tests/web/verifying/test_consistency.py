"""The log extends its earlier checkpoints: a file that `apc log check` reads."""

from datetime import timedelta

import orjson
import pytest
from tests.support.traffic.packets import make_packet
from tests.web.conftest import WebBench

from apc_client.sending import until
from apc_contracts import SignalPayload
from apc_contracts.vocabulary import Signal
from apc_log.offline_verifier import check_file, parse_key, parse_note

PATH = "/log/checkpoints/0/consistency"


async def test_a_later_log_extends_an_earlier_one(told: WebBench) -> None:
    old = (await told.get("/log/checkpoints"))["items"][0]["tree_size"]
    await told.house.publish(make_packet("red-1", SignalPayload(signal=Signal.QUERY)))
    await told.house.quiet()
    proof = await told.get(PATH, old=old)
    new = parse_note(proof["new"]).checkpoint.size
    assert new > old == parse_note(proof["old"]).checkpoint.size
    said = check_file(iter([orjson.dumps(proof).decode()]), [parse_key(proof["key"])])
    assert f"of {new} entries extends that of {old}" in "\n".join(said)


@pytest.mark.long
async def test_an_entry_of_any_kind_is_proven(told: WebBench) -> None:
    entries = (await told.get("/log/checkpoints"))["items"][0]["tree_size"]
    kinds = set()
    for seq in range(1, entries + 1):
        proof = await told.get(f"/log/entries/0/{seq}/proof")
        kinds.add(orjson.loads(proof["entry"])[0])
        check_file(iter([orjson.dumps(proof).decode()]), [parse_key(proof["key"])])
    assert {"packet", "hop"} <= kinds
    assert (await told.get(f"/log/entries/0/{10**9}/proof", status=409))["code"] == "PROOF_IMPOSSIBLE"
    assert (await told.get("/log/entries/9/1/proof", status=404))["code"] == "NOT_FOUND"


async def test_by_default_the_newest_checkpoint_extends_the_exported_one(told: WebBench) -> None:
    async def exported() -> bool:
        return bool((await told.get("/log/checkpoints"))["items"][0]["exported"])

    await until(exported, timedelta(seconds=30))
    proof = await told.get(PATH)
    assert 0 < parse_note(proof["old"]).checkpoint.size <= parse_note(proof["new"]).checkpoint.size


async def test_sizes_and_shards_that_are_not_there_are_told(told: WebBench) -> None:
    assert (await told.get(PATH, status=409, old=10**9))["code"] == "PROOF_IMPOSSIBLE"
    assert (await told.get("/log/checkpoints/9/consistency", status=404))["code"] == "NOT_FOUND"


async def test_a_size_that_cannot_be_is_refused_and_one_that_was_never_signed_is_told(told: WebBench) -> None:
    size = (await told.get("/log/checkpoints"))["items"][0]["tree_size"]
    assert (await told.get(PATH, old=size, new=size))["path"] == []
    for old, new in ((size, 1), (size, 10**15), ((1 << 53) - 1, (1 << 53) - 1)):
        assert (await told.get(PATH, status=409, old=old, new=new))["code"] == "PROOF_IMPOSSIBLE"
    for value in (0, -1, 1 << 53, 1 << 64, "1.5", "1e3", "", "' OR 1=1 --"):
        for name in ("old", "new"):
            assert (await told.get(PATH, status=422, **{name: value}))["code"] == "INVALID"
    for shard in (-1, 1 << 31, "all", "0.5"):
        assert (await told.get(f"/log/checkpoints/{shard}/consistency", status=422))["field"] == "shard"
    missing = await told.get(f"/log/checkpoints/{(1 << 31) - 1}/consistency", status=404, old=1, new=2)
    assert missing["code"] == "NOT_FOUND"


@pytest.mark.long
async def test_a_server_without_the_key_says_so(told: WebBench) -> None:
    old = (await told.get("/log/checkpoints"))["items"][0]["tree_size"]
    await told.get(PATH, old=old)
    object.__setattr__(told.services, "key_of", lambda shard: None)
    assert (await told.get(PATH, status=409, old=old))["code"] == "NO_LOG_KEY"
