"""Somebody hides what a verification finds, or keeps others from ending one."""

import asyncio
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import httpx2 as httpx
import pytest
from tests.security.web.test_accounts import opened
from tests.security.web.test_verification import PATH, verifier
from tests.support.log.tampering import disable_guards
from tests.web.conftest import SERVER, WebBench

from apc_client.sending import until
from apc_web import guard
from apc_web.guard import AccessGuard
from apc_web.http import CheckedRequests
from apc_web.verification_job import LogVerifier

__all__ = ["verifier"]
PATIENCE = timedelta(seconds=90)
LONG = 2_000_000


async def test_a_verification_that_still_starts_is_cancelled(
    told: WebBench, verifier: LogVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as unguarded:
        unguarded.setattr(verifier, "_turn", nullcontext())
        _, missed = await asyncio.gather(verifier.start("local"), verifier.cancel())
        assert missed.state == "running", "it comes too early to end anything"
    await verifier.cancel()
    _, ended = await asyncio.gather(verifier.start("local"), verifier.cancel())
    assert ended.state == verifier.job.state == "cancelled"


@pytest.mark.long
@pytest.mark.parametrize("is_guarded", [False, True])
async def test_a_row_as_long_as_a_book_hides_no_finding(
    told: WebBench, verifier: LogVerifier, is_guarded: bool
) -> None:
    pool = told.house.pool
    await disable_guards(pool)
    state = await pool.fetchval("UPDATE apc_log.sessions SET state = state RETURNING state")
    await pool.execute("UPDATE apc_log.sessions SET state = repeat('x', $1)", LONG if is_guarded else 1)
    await verifier.start("local")

    async def ended() -> bool:
        return verifier.job.state != "running"

    await until(ended, PATIENCE)
    await pool.execute("UPDATE apc_log.sessions SET state = $1", state)
    job = verifier.job
    assert (job.state, job.is_whole, job.words) == ("done", False, None)
    (found,) = [one for one in job.findings if "column state is 'x" in one.message]
    assert len(found.message) < LONG / 100


async def test_a_foreign_page_and_a_form_start_and_end_no_verification(
    told: WebBench, verifier: LogVerifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(told, tmp_path) as door:
        cookie = {"Cookie": (await door.cookie("olga"))["Cookie"]}
        transport = httpx.ASGITransport(CheckedRequests(AccessGuard(door.app, door.accounts), None))
        async with httpx.AsyncClient(transport=transport, base_url=SERVER) as client:
            for method in ("POST", "DELETE"):
                for origin in ("https://evil.example", "null", "http://127.0.0.1:1", f"{SERVER}.evil.example"):
                    answer = await client.request(method, PATH, headers={**cookie, "Origin": origin})
                    assert (answer.status_code, answer.json()["code"]) == (403, "WRONG_ORIGIN")
                assert (await client.request(method, PATH, headers=cookie)).json()["code"] == "NO_ORIGIN"
                form = await client.request(method, PATH, headers={**cookie, "Origin": SERVER}, data={"a": "b"})
                assert (form.status_code, form.json()["code"]) == (415, "NOT_JSON")
            assert verifier.job.state == "none"
            with monkeypatch.context() as unguarded:
                unguarded.setattr(guard, "_READS", {"POST"})
                assert (await client.post(PATH, headers=cookie)).json()["state"] == "running"


async def test_a_database_that_fails_is_told_of_without_its_address(told: WebBench) -> None:
    away = LogVerifier("postgresql://owner@127.0.0.1:1/secret")
    object.__setattr__(told.services, "verifier", away)
    await away.start("local")

    async def ended() -> bool:
        return away.job.state != "running"

    await until(ended, PATIENCE)
    job = await told.get("/log/verify")
    assert (job["state"], job["words"]) == ("failed", "the database does not answer: try again when it does")


async def test_a_key_that_broke_is_told_without_its_place(
    told: WebBench, verifier: LogVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setenv("APC_LOG_KEY", "no key at all")
        seen, started = await told.get("/log/verify"), await told.client.post(PATH)
    assert "cannot be used" in seen["why_not"] and "APC_LOG_KEY" not in seen["why_not"]
    assert (started.status_code, started.json()["code"]) == (409, "NO_LOG_KEY")
