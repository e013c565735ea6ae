"""The services that the tests themselves stand on."""

import aio_pika
import asyncpg
from tests.support.servers import RabbitServer


async def test_every_vhost_is_fresh(rabbit_server: RabbitServer) -> None:
    urls = {rabbit_server.fresh_vhost_url() for _ in range(2)}
    assert len(urls) == 2
    for url in urls:
        async with await aio_pika.connect(url) as connection, connection.channel() as channel:
            queue = await channel.declare_queue("q")
            assert queue.declaration_result.message_count == 0


async def test_a_database_is_migrated_and_own(postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    try:
        assert await connection.fetchval("SELECT to_regclass('apc_log.agent_packets')") is not None
        assert await connection.fetchval("SELECT count(*) FROM apc_log.agent_packets") == 0
    finally:
        await connection.close()
