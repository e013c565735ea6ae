"""The log is verified by a job with progress."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.log.tampering import disable_guards
from tests.web.conftest import WebBench

from apc_web.verification_job import LogVerifier

PATIENCE = 90.0


async def _verified(told: WebBench, url: str) -> Any:
    verifier = LogVerifier(url)
    object.__setattr__(told.services, "verifier", verifier)
    assert (await told.get("/log/verify"))["state"] == "none"
    started = await told.client.post("/api/v1/log/verify")
    assert (started.status_code, started.json()["state"]) == (200, "running")

    async def ended() -> Any:
        while (job := await told.get("/log/verify"))["state"] == "running":
            await asyncio.sleep(0.1)
        return job

    return await asyncio.wait_for(ended(), PATIENCE)


@pytest.mark.long
async def test_a_whole_log_is_whole_and_a_changed_row_is_found(told: WebBench, postgres_url: str) -> None:
    job = await _verified(told, postgres_url)
    assert (job["state"], job["is_whole"], job["findings"]) == ("done", True, []), job
    assert job["entries"] == job["total"] > 0 and job["by"] == "local" and job["ended_at"]

    await disable_guards(told.house.pool)
    await told.house.pool.execute("UPDATE apc_log.agent_packets SET generation = 9 WHERE verdict = 'refused'")
    job = await _verified(told, postgres_url)
    await told.house.pool.execute("UPDATE apc_log.agent_packets SET generation = 0 WHERE verdict = 'refused'")
    assert (job["state"], job["is_whole"]) == ("done", False)
    assert any("differs from its leaf" in one["message"] for one in job["findings"])


async def test_a_database_that_is_away_is_said(told: WebBench) -> None:
    job = await _verified(told, "postgresql://nobody@127.0.0.1:1/none")
    assert (job["state"], job["is_whole"]) == ("failed", None)
    assert job["words"].startswith("the database does not answer")


@pytest.mark.long
async def test_a_server_without_a_verifier_says_what_to_do(told: WebBench) -> None:
    assert (await told.get("/log/verify", status=409))["code"] == "NO_VERIFIER"


@pytest.mark.long
async def test_a_server_without_the_log_key_says_what_to_do(
    told: WebBench, postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verifier = LogVerifier(postgres_url)
    object.__setattr__(told.services, "verifier", verifier)
    assert (await told.client.post("/api/v1/log/verify")).status_code == 200
    await verifier.cancel()
    monkeypatch.delenv("APC_LOG_KEY")
    monkeypatch.chdir(tmp_path)  # a demo in the checkout has left a key
    job, refused = await told.get("/log/verify"), await told.client.post("/api/v1/log/verify")
    assert job["why_not"].startswith("this server has no key of the log") and "apc log verify" in job["why_not"]
    assert (refused.status_code, refused.json()["code"]) == (409, "NO_LOG_KEY")
    assert refused.json()["detail"] == job["why_not"]
