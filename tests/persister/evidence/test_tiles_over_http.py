"""The log over HTTP: a monitor that knows the public key alone finds the same tree there."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.persister.evidence.conftest import WrittenLog
from tests.persister.evidence.tiles_over_http import Monitor, leaf_of, path_to, root_over
from tests.support.log import until

from apc_cli.commands.serve import make_app
from apc_persister.evidence.documents import prove_entry
from apc_web.http import make_server


@pytest.fixture
async def port(written: WrittenLog) -> AsyncIterator[int]:
    """Of a server that serves the written log."""
    server = make_server(make_app(written.pool), "127.0.0.1", 0)
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started or serving.done())
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    await serving


@pytest.mark.parametrize("prefix", ["", "/0"])
async def test_a_monitor_finds_the_tree_and_every_path(written: WrittenLog, port: int, prefix: str) -> None:
    key = written.signer.public_key(0)
    monitor = Monitor("127.0.0.1", port, prefix, str(key))
    size, root = await asyncio.to_thread(monitor.checkpoint)
    leaves = await asyncio.to_thread(monitor.level, 0, size)
    assert size == len(leaves) == 606 and root_over(leaves) == root
    # A hash of the level above is the root over a full tile.
    upper = await asyncio.to_thread(monitor.level, 1, size)
    assert upper == [root_over(leaves[:256]), root_over(leaves[256:512])]
    # What `apc log prove` says of an entry is what the tiles say.
    async with written.pool.acquire() as connection:
        for seq in (1, 256, 257, 303, 606):
            proof = await prove_entry(connection, key, 0, seq)
            assert leaf_of(proof["entry"]) == leaves[seq - 1]
            assert [bytes.fromhex(step) for step in proof["path"]] == path_to(seq - 1, leaves)
    # The tree of an earlier checkpoint can be read too.
    earlier = written.outside[0]
    assert root_over(await asyncio.to_thread(monitor.level, 0, earlier.size)) == earlier.root


async def test_what_is_not_there(written: WrittenLog, port: int) -> None:
    monitor = Monitor("127.0.0.1", port, "", str(written.signer.public_key(0)))
    wrong = (
        *("/tile/0/002", "/tile/0/002.p/95", "/tile/0/003.p/1", "/tile/0/000.p/0", "/tile/0/000.p/256"),
        *("/tile/0/0", "/tile/0/x000/000", "/tile/0/1000", "/tile/0/x999/x999/x999/x999/x999/x999/999"),
        *("/tile/9/000", "/tile/1/000", "/tile/entries/000", "/tile/-1/000", "/tile/0/000.p/1/x", "/1/checkpoint"),
        *("/99999999999/checkpoint", "/99999999999/tile/0/000", "/"),
        *(f"/{'9' * 5000}/checkpoint", f"/tile/{'9' * 5000}/000", "/+0/checkpoint"),
    )
    for path in wrong:
        status, _ = await asyncio.to_thread(monitor.get, path)
        assert status == 404, path
    status, body = await asyncio.to_thread(monitor.get, "/tile/0/002.p/94")
    assert status == 200 and len(body) == 94 * 32
