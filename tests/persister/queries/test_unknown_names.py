"""`apc packet trace` of a run, a session or a packet that the log does not hold."""

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.support.log import LogBench, packet_entry

from apc_console.commands.packet.packets_view import Filters, print_trace
from apc_console.errors import InputUnusable
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
        filters = Filters(**dict.fromkeys(Filters.__dataclass_fields__) | given)
        await print_trace(filters, limit=10, with_events=False, as_json=True)
        found: list[Any] = json.loads(capsys.readouterr().out)
        return found

    for given in ({"run_id": "run-2"}, {"packet_id": uuid4()}, {"run_id": "run-1", "session_id": "none"}):
        with pytest.raises(InputUnusable, match="the log holds no packet of"):
            await traced(**given)
    assert len(await traced(run_id="run-1")) == 1
    assert await traced(run_id="run-1", packet_type=PacketType.EVAL) == [], "the run is there"
    assert await traced(packet_type=PacketType.EVAL) == []
