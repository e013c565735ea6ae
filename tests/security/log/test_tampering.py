"""Random tamperings with a log of 20,000 entries, each rolled back: each is found with its place, none raises.

`APC_TAMPERINGS` is how many, `APC_TAMPERING_SEED` repeats those of a run. The next run begins with what failed: CI runs
a failed test once more, which must not pass only because it tries other tamperings.
"""

import os
import time
import traceback
from random import Random

import pytest
from tests.security.log.long_log import ENTRIES, LongLog, write_long_log
from tests.security.log.tamperings import Tamperer

from apc_bus.database import open_pool
from apc_log.heads import AnyConnection
from apc_persister.evidence.rows import find_strays, list_shards
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import LogFinding, is_covered
from apc_persister.verification.verify import verify_shard

TAMPERINGS = int(os.environ.get("APC_TAMPERINGS", "10"))
SEED = int(os.environ.get("APC_TAMPERING_SEED", time.time_ns() % 1_000_000))
_FAILED = "apc/failed_tamperings"


async def verify(connection: AnyConnection, long_log: LongLog) -> list[LogFinding]:
    findings = await find_strays(connection)
    for shard in sorted({0, *await list_shards(connection)}):
        outside = long_log.outside if shard == 0 else ()
        report = await verify_shard(connection, shard, long_log.signer.public_key(shard), outside=outside)
        findings += report.findings
    return findings + await compare_derived(connection)


@pytest.mark.long
@pytest.mark.timeout(120 + 5 * TAMPERINGS)
async def test_each_tampering_is_found_with_its_place(postgres_url: str, pytestconfig: pytest.Config) -> None:
    pool = await open_pool(postgres_url, max_size=2)
    long_log = await write_long_log(pool)
    await pool.execute("ANALYZE")
    cache = pytestconfig.cache
    assert cache is not None
    seeds = [*cache.get(_FAILED, []), *range(SEED, SEED + TAMPERINGS)]
    failed: dict[int, str] = {}
    async with pool.acquire() as connection:
        assert await verify(connection, long_log) == []
        for seed in seeds:
            fault = await _tamper(connection, long_log, seed)
            if fault is not None:
                failed[seed] = fault
        assert await verify(connection, long_log) == [], "everything was rolled back"
    await pool.close()
    cache.set(_FAILED, list(failed))
    assert not failed, "".join(f"\nAPC_TAMPERING_SEED={seed}: {fault}" for seed, fault in failed.items())
    print(f"{len(seeds)} tamperings with a log of {ENTRIES} entries from seed {SEED}: 0 missed, 0 tracebacks")


async def _tamper(connection: AnyConnection, long_log: LongLog, seed: int) -> str | None:
    """Tamper, verify and roll back; what is wrong with what the verifier said, if anything is."""
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    try:
        tampering = await (await Tamperer.open(connection, Random(seed))).tamper()
        findings = await verify(connection, long_log)
    except Exception:
        return traceback.format_exc()
    finally:
        await transaction.rollback()
    if any(finding.place for finding in findings) or not is_covered(tampering.table, tampering.column):
        return None
    return f"missed: {tampering.text}"
