"""`apc packet trace` and `lineage-summary` of a run, a session or a packet that the log does not hold."""

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.support.log import LogBench, packet_entry

from apc_cli.commands.packet import trace
from apc_cli.commands.packet_lineage import lineage_summary
from apc_cli.errors import InputUnusable
from apc_contracts.vocabulary import PacketType


async def test_a_trace_of_what_the_log_does_not_hold_says_so(
    bench: LogBench, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    await bench.gate.open()
    await bench.gate.log([packet_entry(run_id="run-1", packet_type="IDEA")])
    await bench.write()
    capsys.readouterr()

    async def traced(**given: Any) -> list[Any]:
        await trace(**given, limit=10, events=False, as_json=True)
        found: list[Any] = json.loads(capsys.readouterr().out)
        return found

    for given in ({"run_id": "run-2"}, {"packet_id": uuid4()}, {"run_id": "run-1", "session_id": "none"}):
        with pytest.raises(InputUnusable, match="the log holds no packet of"):
            await traced(**given)
    assert len(await traced(run_id="run-1")) == 1
    assert await traced(run_id="run-1", packet_type=PacketType.EVAL) == [], "the run is there"
    assert await traced(packet_type=PacketType.EVAL) == []


async def test_a_lineage_summary_of_an_unknown_run_says_so(
    bench: LogBench, postgres_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    await bench.gate.open()
    await bench.gate.log([packet_entry(run_id="run-1", packet_type="IDEA")])
    await bench.write()

    async def summed(run_id: str, *, as_json: bool) -> str:
        capsys.readouterr()
        await lineage_summary(run_id=run_id, limit=10, as_json=as_json)
        return capsys.readouterr().out

    with pytest.raises(InputUnusable, match="the log holds no packet of run_id run-2"):
        await summed("run-2", as_json=True)
    assert json.loads(await summed("run-1", as_json=True))["protocols"] == []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert (await summed("run-1", as_json=False)).startswith("no TRANSFER, arbitration or decay decision")
