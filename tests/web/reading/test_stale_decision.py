"""A result whose DECISION rests on a retracted CLAIM: the commands and the web console say so."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.orchestrator.conftest import make_brief
from tests.orchestrator.judging.test_task_sessions import decision, open_task, work
from tests.support.apc_command import ApcCommand
from tests.support.traffic.packets import SESSION
from tests.web.conftest import WebBench

from apc_contracts import ClaimPayload, CommitmentLevel, ProofBundle, RetractionPayload


async def test_readers_of_the_result_are_told_what_was_retracted(
    bench: WebBench, postgres_url: str, tmp_path: Path
) -> None:
    async def run(*arguments: str) -> Any:
        done = await asyncio.to_thread(
            ApcCommand(tmp_path), "session", *arguments, SESSION, given={"APC_DATABASE_URL": postgres_url}
        )
        assert done.returncode == 0, done.stderr
        return done

    opening = open_task()
    task = work("librarian", make_brief(), ("red-1",), parent=opening)
    payload = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)
    claim = work("blue-1", payload, parent=task, proof_bundle=ProofBundle(evidence_refs=("log://1",)))
    done = work("red-1", decision(CommitmentLevel.DONE), parent=claim)
    retraction = work("blue-1", RetractionPayload(target_packet_id=claim.packet_id, reason="wrong"), parent=claim)
    async with bench.house.persister(), bench.house.gate():
        await bench.house.open(opening)
        for one in (task, claim, done):
            await bench.house.publish(one)
        await bench.house.quiet()
        sound = await run("result")
        assert (await bench.get(f"/sessions/{SESSION}"))["stale_decisions"] == []
        await bench.house.publish(retraction)
        await bench.house.quiet()
    assert sound.stderr == "" and json.loads(sound.stdout).keys() == {"session", "result"}

    result, explained = await run("result"), await run("explain")
    session = await bench.get(f"/sessions/{SESSION}")

    words = (
        f"DECISION {done.packet_id} of red-1 is stale: CLAIM {claim.packet_id} of blue-1 was retracted "
        f"(RETRACTION {retraction.packet_id}); `apc packet impact {claim.packet_id}` lists what rests on it"
    )
    assert result.stderr == f"apc: the result is open to doubt: {words}.\n"
    printed, told = json.loads(result.stdout), json.loads(explained.stdout)
    assert printed["stale"]["ground_id"] == str(claim.packet_id) and printed["doubts"] == [f"{words}."]
    assert told["remarks"][0] == f"{words}." and "open to doubt" in told["standing"]
    assert session["state"] == "CLOSED"
    assert [one["words"] for one in session["stale_decisions"]] == [words]
