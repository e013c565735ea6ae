"""The conformance kit of A2A against `apc up --a2a`, with authentication on (docs/how-to/a2a.md has the report).

`A2A_TCK` names a checkout of the kit (github.com/a2aproject/a2a-tck, branch 1.0-dev) with an environment `.venv`.
"""

import asyncio
import json
import os
import socket
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.waiting import until

TCK = os.environ.get("A2A_TCK")
HERE = Path(__file__).parent
KNOWN = {"CORE-SEND-003", "HTTP_JSON-SVC-001"}
"""MUSTs that the kit itself gets wrong (its pull request 238)."""

pytestmark = [
    pytest.mark.long,
    pytest.mark.postgres,
    pytest.mark.timeout(900),
    pytest.mark.skipif(TCK is None, reason="A2A_TCK names no checkout of the conformance kit"),
]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


async def run_tck(url: str, token: str, folder: Path) -> dict[str, Any]:
    """Run the kit; return its report."""
    report = folder / "compatibility"
    kit = await asyncio.create_subprocess_exec(
        f"{TCK}/.venv/bin/python",
        *("-m", "pytest", "tests/compatibility/", "-q", "--tb=short", "-p", "tck_token", f"--sut-host={url}"),
        *(f"--compatibility-report={report}", "--webhook-host=127.0.0.1"),
        cwd=TCK,
        env=os.environ | {"PYTHONPATH": str(HERE), "A2A_TOKEN": token},
    )
    await kit.wait()
    return dict(json.loads(report.with_suffix(".json").read_text()))


async def test_the_conformance_kit_finds_no_unknown_failure(postgres_url: str, tmp_path: Path) -> None:
    port = free_port()
    door = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "apc_cli", "up", "--a2a", "tests.doors.a2a.tck_team:team"),
        env=os.environ
        | {
            "APC_DATABASE_URL": postgres_url,
            "APC_DATA_DIR": str(tmp_path),
            "APC_A2A_LISTEN": f"127.0.0.1:{port}",
            "APC_A2A_PUSH_HOSTS": '["127.0.0.1", "localhost", "example.com"]',
            "APC_A2A_MOST_TASKS": "1000",
        },
    )
    try:
        url = f"http://127.0.0.1:{port}"

        async def answers() -> bool:
            assert door.returncode is None
            try:
                async with httpx.AsyncClient() as http:
                    return (await http.get(f"{url}/healthz")).status_code == 200
            except httpx.TransportError:
                return False

        await until(answers)
        report = await run_tck(url, (tmp_path / "a2a-token").read_text().strip(), tmp_path)
    finally:
        door.terminate()
        await door.wait()
    assert failed_of(report) <= KNOWN


def failed_of(report: dict[str, Any]) -> set[str]:
    """Return the requirements that fail."""
    counted: Counter[str] = Counter()
    failed = set()
    for name, one in report["per_requirement"].items():
        counted[f"{one['level']} {one['status']}"] += 1
        if one["status"] == "FAIL":
            failed.add(name)
    print(dict(sorted(counted.items())))
    return failed
