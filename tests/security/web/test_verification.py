"""Somebody verifies the log who must not, many times at once, or with a secret that others could see."""

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2 as httpx
import psutil
import pytest
from tests.security.web.test_accounts import opened
from tests.support.reference.web_api import roles_of_routes
from tests.web.conftest import SERVER, TOKEN, WebBench

from apc_web import roles
from apc_web.access import AccountRole
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.local_token import make_token
from apc_web.verification_job import LogVerifier

PATH = "/api/v1/log/verify"
PATIENCE = 60.0
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def verifier(told: WebBench, postgres_url: str) -> AsyncIterator[LogVerifier]:
    made = LogVerifier(postgres_url)
    object.__setattr__(told.services, "verifier", made)
    yield made
    await made.cancel()


def _client(told: WebBench) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(AccessGuard(make_app(told.services), TOKEN))
    return httpx.AsyncClient(transport=transport, base_url=SERVER)


async def _state(client: httpx.AsyncClient) -> str:
    return str((await client.get(PATH, headers=BEARER)).json()["state"])


def _processes() -> list[str]:
    """Return the command lines of the verifications that this test's server runs."""
    lines = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    return [line for line in lines if "apc_web.verification_process" in line]


@pytest.mark.long
async def test_one_verification_runs_however_many_are_started(told: WebBench, verifier: LogVerifier) -> None:
    async with _client(told) as client:
        answers = await asyncio.gather(*(client.post(PATH, headers=BEARER) for _ in range(20)))

        assert sorted(answer.status_code for answer in answers) == [200, *[409] * 19]
        assert {answer.json()["code"] for answer in answers if answer.status_code == 409} == {"ALREADY_RUNS"}
        assert len(_processes()) == 1
        assert (await client.delete(PATH, headers=BEARER)).json()["state"] == "cancelled"
        assert (await client.delete(PATH, headers=BEARER)).json()["state"] == "cancelled", "nothing is left to end"
        assert (await client.post(PATH, headers=BEARER)).status_code == 200, "the next one starts"


async def test_a_stranger_starts_ends_and_sees_no_verification(told: WebBench, verifier: LogVerifier) -> None:
    strangers = [{}, {"Authorization": f"Bearer {make_token()}"}]
    async with _client(told) as client:
        for headers in strangers:
            for method in ("GET", "POST", "DELETE"):
                assert (await client.request(method, PATH, headers=headers)).status_code == 401
        assert await _state(client) == "none"
        assert (await client.post(PATH, headers=BEARER)).status_code == 200
        assert (await client.delete(PATH, headers=strangers[1])).status_code == 401
        assert await _state(client) == "running"


async def test_a_reader_sees_a_verification_and_an_operator_starts_it(
    told: WebBench, verifier: LogVerifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(told, tmp_path) as door:
        headers = {name: await door.cookie(name) for name in ("vera", "rita", "olga")}
        found = {
            name: [(await door.client.request(method, PATH, headers=headers[name])).status_code for method in methods]
            for name, methods in (("vera", ("GET", "POST", "DELETE")), ("rita", ("GET", "POST", "DELETE")))
        }
        assert found == {"vera": [403, 403, 403], "rita": [200, 403, 403]}
        assert verifier.job.state == "none"
        started = await door.client.post(PATH, headers=headers["olga"])
        assert (started.status_code, started.json()["by"]) == (200, "olga")
        await verifier.cancel()
        with monkeypatch.context() as unguarded:
            unguarded.setattr(roles, "require", lambda role: None)
            assert (await door.client.post(PATH, headers=headers["vera"])).status_code == 200
    assert AccountRole.OPERATOR is roles_of_routes()["start_verification"]


async def test_the_address_of_the_database_is_in_no_process_list(
    told: WebBench, verifier: LogVerifier, postgres_url: str
) -> None:
    await verifier.start("local")
    lines = _processes()
    assert lines and not any(postgres_url in line for line in lines)
    assert any(postgres_url in line for line in [*lines, f"python -m apc_web.verification_process {postgres_url}"])


async def test_a_verification_ends_with_its_server(postgres_url: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apc_web.verification_process", stdin=PIPE, stdout=PIPE
    )
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.wait_for(process.wait(), PATIENCE)
