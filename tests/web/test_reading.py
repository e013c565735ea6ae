"""Every read of the API over a session that a real gate judged."""

import json
from pathlib import Path

import pytest
from tests.support.traffic.packets import make_packet, make_start
from tests.web.conftest import WebBench

from apc_contracts import IdeaPayload, SignalPayload
from apc_contracts.vocabulary import RunPhase, Signal
from apc_log.offline_verifier import main as check
from apc_log.queries.session_pages import find_session

RED = "red-1"
SESSION = "s-1"


async def test_runs_and_sessions(told: WebBench) -> None:
    run = (await told.get("/runs"))["items"][0]
    assert run["run_id"] == "run-1" and run["running"] == 1 and run["session_ids"] == [SESSION]
    assert await told.get("/runs/run-1") == run

    session = await told.get(f"/sessions/{SESSION}")

    assert session["state"] == "INDEPENDENT_DISCOVERY"
    assert session["packets"] == sum(one["count"] for one in session["verdicts"])
    assert {"name": "PHASE_MISMATCH", "count": 1} in session["refusals"]
    assert [one["resource"] for one in session["budgets"]] == ["packets"]
    assert {one["kind"] for one in session["waits"]} >= {"barrier", "delivery", "deadline"}
    assert session["waits"][0]["words"] == "the barrier of generation 0 waits for an EVAL of red, blue"
    assert session["machine"]["states"][0]["name"] == "SESSION_OPEN"
    moves = (await told.get(f"/sessions/{SESSION}/moves"))["items"]
    assert [one["to_state"] for one in moves] == ["DIFFERENTIATED_RESEARCH", "INDEPENDENT_DISCOVERY"]
    assert (await told.get(f"/sessions/{SESSION}/scores"))["scores"] == []


async def test_a_timeline_comes_in_pages_and_names_causes_by_rows(told: WebBench) -> None:
    whole = await told.get(f"/sessions/{SESSION}/timeline")
    packets = (await told.get("/packets", session_id=SESSION, limit=500))["items"]

    assert whole["seq"] == [one["seq"] for one in packets]
    assert [whole["lanes"][at] for at in whole["lane"]] == [one["sender"] for one in packets]
    assert [whole["codes"][at] or None for at in whole["code"]] == [one["refusal_code"] for one in packets]
    ids = [one["packet_id"] for one in packets]
    named = [ids[row - back] if back else None for row, back in enumerate(whole["parent"])]
    assert named == [one["parent_packet_id"] for one in packets]
    first = await told.get(f"/sessions/{SESSION}/timeline", limit=3)
    rest = await told.get(f"/sessions/{SESSION}/timeline", after=first["next"])
    assert first["seq"] + rest["seq"] == whole["seq"] and rest["next"] is None


async def test_a_held_packet_shows_its_ruling_everywhere(told: WebBench, idea: IdeaPayload) -> None:
    opening = make_start(budgets={"packets": 50})
    held = make_packet("blue-1", idea, ("sentinel",), phase=RunPhase.DISCOVERY, parent=opening, keys=("held",))

    async def shown() -> tuple[str, str, int]:
        whole = await told.get(f"/sessions/{SESSION}/timeline")
        row = [one["packet_id"] for one in (await told.get("/packets", session_id=SESSION, limit=500))["items"]].index(
            str(held.packet_id)
        )
        session = await told.get(f"/sessions/{SESSION}")
        at = await told.get(f"/sessions/{SESSION}/at/{session['last_seq']}")
        counts = {one["name"]: one["count"] for one in session["verdicts"]}
        assert counts == {name: count for name, count in at["verdicts"].items() if count}
        packet = await told.get(f"/packets/{held.packet_id}")
        return whole["verdicts"][whole["verdict"][row]], packet["ruling"]["verdict"], counts.get("held", 0)

    await told.house.publish(make_packet("librarian", SignalPayload(signal=Signal.PAUSE), parent=opening))
    await told.house.publish(held)
    await told.house.quiet()
    assert await shown() == ("held", "held", 1)
    await told.house.publish(make_packet("librarian", SignalPayload(signal=Signal.RESUME), parent=opening))
    await told.house.quiet()
    ruled, ruling, left = await shown()
    assert ruled == ruling != "held" and left == 0
    alike = (await told.get("/packets", session_id=SESSION, verdict=ruled, limit=500))["items"]
    assert str(held.packet_id) in [one["packet_id"] for one in alike]


async def test_a_refused_packet_says_why_and_what_would_have_passed(told: WebBench) -> None:
    page = await told.get("/packets", session_id=SESSION, verdict="refused", refusal_code="PHASE_MISMATCH")
    found = page["items"][0]

    packet = await told.get(f"/packets/{found['packet_id']}")

    assert packet["ruling"]["code"] == "PHASE_MISMATCH"
    assert packet["ruling"]["words"].startswith("refused: run_phase is neither")
    assert packet["ruling"]["remedy"] and packet["ruling"]["path"] == "run_phase"
    assert packet["document"]["sender"]["agent_id"] == "blue-1" and not packet["is_sealed"]
    assert [one["edge"] for one in packet["causes"]] == ["parent"]
    assert await told.get(f"/packets/{found['shard']}-{found['seq']}") == packet


async def test_a_packet_has_the_lifecycle_of_its_contract(told: WebBench) -> None:
    sent = (await told.get("/packets", session_id=SESSION, sender=RED))["items"][0]

    packet = await told.get(f"/packets/{sent['packet_id']}")

    edges = {(edge["from_state"], edge["to_state"]) for edge in packet["lifecycle"]["edges"]}
    moved = {(hop["from_state"], hop["to_state"]) for hop in packet["hops"] if hop["to_state"]}
    assert packet["lifecycle"]["states"][0]["name"] == "DRAFT"
    assert moved and moved <= edges


async def test_a_packet_has_its_bytes_its_effects_and_what_rests_on_it(told: WebBench) -> None:
    name = (await told.get("/packets", session_id=SESSION, limit=1))["items"][0]["packet_id"]

    tree = await told.get(f"/packets/{name}/tree")
    impact = await told.get(f"/packets/{name}/impact")
    body = await told.client.get(f"/api/v1/packets/{name}/body")

    packets = (await told.get("/packets", session_id=SESSION, limit=500))["items"]
    below = {one["packet_id"] for one in packets if one["parent_packet_id"] == name}
    assert below <= {one["packet_id"] for one in tree["items"]} and tree["items"][0]["depth"] == 0
    assert impact["total"] == len(impact["items"]) > 0
    assert body.content == await told.house.pool.fetchval(
        "SELECT body_stored FROM apc_log.agent_packets WHERE packet_id = $1", name
    )


async def test_a_proof_is_the_file_that_the_offline_verifier_checks(
    told: WebBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packet = (await told.get("/packets", session_id=SESSION, limit=1))["items"][0]

    proof = await told.get(f"/packets/{packet['packet_id']}/proof")

    file = tmp_path / "proof.json"
    file.write_text(json.dumps(proof))
    assert check([str(file), "--key", proof["key"]]) == 0
    file.write_text(json.dumps(proof | {"entry": proof["entry"].replace("librarian", "liberator")}))
    assert check([str(file), "--key", proof["key"]]) == 1


async def test_filters_cursors_and_search(told: WebBench) -> None:
    everything = (await told.get("/packets", limit=500))["items"]
    newest = (await told.get("/packets", limit=500, order="newest"))["items"]
    assert newest == everything[::-1]
    pages, after = [], None
    while True:
        page = await told.get("/packets", session_id=SESSION, limit=4, after=after)
        pages += page["items"]
        after = page["next"]
        if after is None:
            break
    assert pages == [one for one in everything if one["session_id"] == SESSION]
    assert {one["sender"] for one in (await told.get("/packets", session_id=SESSION, sender=RED))["items"]} == {RED}

    found = await told.get("/packets", text="METHOD_ID", session_id=SESSION)

    assert {one["packet_type"] for one in found["items"]} == {"IDEA"} and found["is_complete"]
    assert found["looked_at"] == len(pages)


async def test_the_session_at_its_last_entry_is_the_projection(told: WebBench) -> None:
    place = await find_session(told.services.pool, SESSION)
    assert place is not None
    session = await told.get(f"/sessions/{SESSION}")

    at = await told.get(f"/sessions/{SESSION}/at/{session['last_seq']}")

    assert (at["state"], at["run_phase"], at["step"]) == (session["state"], session["run_phase"], session["step"])
    assert at["packets"] == session["packets"]
    assert at["spent"]["packets"] == place.document.spent["packets"]
    assert at["budgets"] == place.document.budgets and at["swarms"] == place.document.swarms
    assert at["refusals"] == {one["name"]: one["count"] for one in session["refusals"]}
    assert at["deliveries"].get("ROUTED", 0) == place.open_deliveries
    before = await told.get(f"/sessions/{SESSION}/at/0")
    assert before["state"] is None and before["packets"] == 0


async def test_the_log_the_agents_and_the_empty_lists(told: WebBench) -> None:
    checkpoint = (await told.get("/log/checkpoints"))["items"][0]
    assert checkpoint["tree_size"] == checkpoint["next_seq"] - 1 and "apc-log" in checkpoint["note"]
    assert {one["agent_id"] for one in (await told.get("/agents"))["items"]} == {
        "librarian",
        RED,
        "blue-1",
        "sentinel",
    }
    assert (await told.get("/about"))["can_act"] is False
    for path in ("/dead", "/arbitrations", "/protocols", "/tasks", "/effects"):
        assert (await told.get(path))["items"] == []
    statistics = await told.get("/arbitrations/stats?since=2026-01-01T00:00:00Z&until=2026-01-02T00:00:00Z")
    assert statistics["looked_at"] == 0 and statistics["diversity"] == []


async def test_an_empty_log_has_empty_lists(bench: WebBench) -> None:
    for path in ("/runs", "/sessions", "/packets", "/dead", "/arbitrations", "/agents", "/log/checkpoints"):
        assert (await bench.get(path))["items"] == []
