"""`apc packet trace` at a terminal: blocks where a table would break ids, a table where there is room."""

import re
from uuid import UUID

import pytest
from tests.support.log import LogBench, packet_entry

from apc_cli.commands.packet import trace

PACKET = UUID("01990000-0000-7000-8000-000000000001")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
async def test_no_id_is_broken(
    bench: LogBench,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
) -> None:
    monkeypatch.setenv("APC_DATABASE_URL", postgres_url)
    monkeypatch.setenv("COLUMNS", str(width))
    await bench.gate.open()
    await bench.gate.log([packet_entry(PACKET, refusal_code="TTL_EXPIRED")])
    await bench.write()
    capsys.readouterr()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    await trace(limit=10, events=False)
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert str(PACKET) in printed
    assert "TTL_EXPIRED" in printed
    assert [line for line in printed.splitlines() if len(line) > width] == []
