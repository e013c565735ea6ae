"""Any bytes: parse_packet gives a packet or a refusal, never anything else."""

import json
import os
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from random import Random

import orjson
import pytest
import rfc8785
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.hostile_bytes import HostileBytes

from apc_contracts import PacketRefused, PacketType, parse_packet, read_packet, seal

from ..conftest import Documents

CODES = {"TOO_LARGE", "TOO_DEEP", "MALFORMED", "SCHEMA_INVALID"}
BODIES_PER_EXAMPLE = 100
SEEDS = st.integers(0, 2**64 - 1)
PROGRAM = Path(__file__).with_name("fuzz_with_atheris.py")


@pytest.fixture(scope="session")
def good(document: Documents) -> list[bytes]:
    """A packet of each type, as json.dumps and as RFC 8785 write it."""
    documents = [document(packet_type) for packet_type in PacketType]
    return [*(json.dumps(one).encode() for one in documents), *map(rfc8785.dumps, documents)]


def verdict(body: bytes) -> str:
    """`packet`, or the code of the refusal. What is accepted must be one text for every reader."""
    try:
        received = read_packet(body)
    except PacketRefused as refused:
        assert refused.code in CODES and refused.path and refused.message, body
        with pytest.raises(PacketRefused) as again:
            parse_packet(body)
        assert str(again.value) == str(refused), body
        return refused.code
    canonical = rfc8785.dumps(orjson.loads(body))
    assert parse_packet(canonical) == received.packet == parse_packet(seal(received.packet).body), body
    return "packet"


def fuzz(good: list[bytes], examples: int) -> Counter[str]:
    """Judge examples x 100 bodies; hypothesis picks the seeds, and one body of each example itself."""
    found: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(SEEDS, st.binary(max_size=200))
    def judge(seed: int, own: bytes) -> None:
        hostile = HostileBytes(good, Random(seed))
        found.update(verdict(hostile.body()) for _ in range(BODIES_PER_EXAMPLE - 1))
        found[verdict(own)] += 1

    judge()
    return found


def check(found: Counter[str], bodies: int) -> None:
    print(f"{found.total()} bodies through parse_packet: {dict(found.most_common())}")
    assert found.total() >= bodies
    assert set(found) >= {"packet", "MALFORMED", "SCHEMA_INVALID", "TOO_DEEP"}, "not exercised"


@pytest.mark.long
def test_ten_thousand_bodies_are_judged(good: list[bytes]) -> None:
    check(fuzz(good, 100), 10_000)


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_a_million_bodies_are_judged(good: list[bytes]) -> None:
    check(fuzz(good, 10_000), 1_000_000)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this platform")
def test_a_coverage_guided_fuzzer_finds_nothing(good: list[bytes], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, body in enumerate(good):
        (corpus / str(number)).write_bytes(body)
    command = [sys.executable, str(PROGRAM), "-runs=200000", "-max_len=8192", "-print_final_stats=1", str(corpus)]
    done = subprocess.run(command, cwd=tmp_path, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "stat::number_of_executed_units: 200000" in done.stderr, "not exercised"
    print(done.stderr[done.stderr.rindex("stat::number_of_executed_units") :])
