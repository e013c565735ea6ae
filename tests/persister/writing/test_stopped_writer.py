"""What stops the writer of a shard: gaps, epochs that were never given, batches that are not its own."""

import msgspec
import pytest
from tests.support.log import (
    LogBench,
    packet_entry,
)

from apc_log.batch import (
    LOG_BATCH_TYPE,
    encode,
)
from apc_persister.errors import BatchGap, BatchUnsupported, EpochUnknown, LogStopped, ShardMismatch


async def stopped(bench: LogBench, error: type[LogStopped], left: int) -> LogStopped:
    """Return the persister stops with this error and leaves messages in the queue."""
    with pytest.raises(error) as caught:
        await bench.write()
    assert (await bench.bus.depth("apc.log.0")).messages == left
    return caught.value


async def test_a_gap_stops_the_shard(bench: LogBench) -> None:
    await bench.gate.open()
    await bench.gate.log([packet_entry()])
    bench.gate.batch_no += 1
    await bench.gate.log([packet_entry()])
    error = await stopped(bench, BatchGap, left=1)
    assert isinstance(error, BatchGap)
    assert (error.shard, error.expected, error.found) == (0, 2, 3)
    assert await bench.count("agent_packets") == 1, "what came before the gap is in the log"
    await stopped(bench, BatchGap, left=1)


async def test_an_epoch_that_was_never_given_stops_the_shard(bench: LogBench) -> None:
    await bench.gate.open()
    bench.gate.epoch = 5
    await bench.gate.log([packet_entry()])
    await stopped(bench, EpochUnknown, left=1)


async def test_a_batch_before_any_opening_stops_the_shard(bench: LogBench) -> None:
    bench.gate.epoch = 1
    await bench.gate.log([packet_entry()])
    await stopped(bench, EpochUnknown, left=1)
    assert await bench.count("shards") == 0


async def test_a_batch_of_another_release_stops_the_shard(bench: LogBench) -> None:
    await bench.gate.open()
    batch = msgspec.structs.replace(bench.gate.batch([packet_entry()]), version=2)
    await bench.gate.publish(encode(batch), LOG_BATCH_TYPE)
    await stopped(bench, BatchUnsupported, left=1)
    await bench.bus.close()


async def test_a_later_format_that_does_not_even_decode_stops_the_shard(bench: LogBench) -> None:
    await bench.gate.publish(msgspec.msgpack.encode([2, {"another": "shape"}]), LOG_BATCH_TYPE)
    await stopped(bench, BatchUnsupported, left=1)


async def test_a_batch_of_another_shard_stops_the_shard(bench: LogBench) -> None:
    await bench.gate.open()
    batch = msgspec.structs.replace(bench.gate.batch([packet_entry()]), shard=3)
    await bench.gate.publish(encode(batch), LOG_BATCH_TYPE)
    await stopped(bench, ShardMismatch, left=1)
