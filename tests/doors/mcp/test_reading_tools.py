"""What assistants read: the readings of the web console, marked, cut at a limit, refused in words."""

import logging
from base64 import b64decode
from typing import Any

import orjson
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from tests.doors.mcp.conftest import Assistant, server_of
from tests.support.traffic import RUN, SESSION
from tests.web.conftest import WebBench

from apc_contracts import load_contract
from apc_log.offline_verifier import check_file, parse_key
from apc_mcp import answers
from apc_mcp.answers import LIMIT_BYTES, NOTE, UNTRUSTED, cut_to
from apc_web.access import AccountRole


async def _ideas(assistant: Assistant) -> list[Any]:
    page = await assistant.call("packets", session_id=SESSION, packet_type="IDEA", limit=50)
    items: list[Any] = page["items"]
    return items


async def test_an_assistant_finds_its_way_from_the_runs_to_a_packet(assistant: Assistant) -> None:
    (run,) = (await assistant.call("runs"))["items"]
    assert (run["run_id"], run["outcome"], run["session_ids"]) == (RUN, "running", [SESSION])
    (listed,) = (await assistant.call("sessions", run_id=RUN))["items"]
    session = await assistant.call("session", session_id=listed["session_id"])
    assert session["state"] == listed["state"] and session["waits"]
    refused = next(one for one in await _ideas(assistant) if one["verdict"] == "refused")
    packet = await assistant.call("packet", packet_id=refused["packet_id"])
    assert packet["ruling"]["code"] == refused["refusal_code"] and packet["ruling"]["words"]
    start = (await assistant.call("packets", session_id=SESSION, order="oldest", limit=1))["items"][0]
    tree = await assistant.call("tree", packet_id=start["packet_id"])
    assert tree["items"][0]["depth"] == 0 and len(tree["items"]) > 1
    impact = await assistant.call("impact", packet_id=start["packet_id"])
    assert impact["total"] == len(impact["items"])
    assert (await assistant.call("approvals"))["items"] == []
    assert (await assistant.call("effects"))["items"] == []
    assert (await assistant.call("dead_letters"))["items"] == []
    assert (await assistant.call("checkpoints"))["items"][0]["shard"] == 0


async def test_words_of_a_packet_are_found_and_marked_as_data(assistant: Assistant) -> None:
    idea = (await _ideas(assistant))[-1]
    line = idea[UNTRUSTED]["line"]
    found = await assistant.whole("search", text=line.split()[0])
    assert found["note"] == NOTE and found["limit_bytes"] == LIMIT_BYTES and found["cut"] == []
    hit = next(one for one in found["answer"]["packets"] if one["packet_id"] == idea["packet_id"])
    assert hit[UNTRUSTED]["line"] == line and "line" not in hit
    packet = await assistant.call("packet", packet_id=idea["packet_id"])
    assert set(packet[UNTRUSTED]) >= {"document", "facts", "said", "line"}
    assert not {"document", "facts", "said", "line"} & set(packet)


async def test_a_session_is_explained_in_words(assistant: Assistant) -> None:
    told = await assistant.call("explain", session_id=SESSION)
    assert told["session_id"] == SESSION and told[UNTRUSTED]["standing"]
    assert all(wait["waits"].startswith("Waits for ") and wait["moves"] for wait in told[UNTRUSTED]["waits"])


async def test_a_run_is_verified_and_tried_under_another_contract(assistant: Assistant) -> None:
    verified = await assistant.call("replay_verify", run_id=RUN)
    assert (verified["is_verified"], verified["sessions"], verified[UNTRUSTED]["problem"]) == (True, 1, None)
    same = await assistant.call("what_if", run_id=RUN, contract=load_contract().body.decode())
    assert same["decisions"] > 0 and same["changes"] == []
    document = orjson.loads(load_contract().body)
    document["phases"]["DISCOVERY"]["packet_types"].remove("IDEA")
    other = await assistant.call("what_if", run_id=RUN, contract=orjson.dumps(document).decode())
    assert {change["would_be"] for change in other["changes"]} == {"refused PHASE_FORBIDS_TYPE"}
    assert (await assistant.refusal("what_if", run_id=RUN, contract="{}")).startswith("INVALID at contract: ")


async def test_a_proof_is_the_file_that_the_verifier_takes(assistant: Assistant) -> None:
    proof = await assistant.call("proof", packet_id=(await _ideas(assistant))[0]["packet_id"])
    verified = check_file([orjson.dumps(proof).decode()], [parse_key(proof["key"])])
    assert any("IDEA" in line for line in verified)


async def test_the_doctor_is_asked_where_there_is_one(told: WebBench) -> None:
    async def examine() -> list[dict[str, str]]:
        return [{"check": "broker", "status": "ok", "finding": "it answers", "fix": ""}]

    async with Client(server_of(told, examine=examine)) as client:
        found = await Assistant(client).call("doctor")
    assert found["findings"][0]["check"] == "broker"
    async with Client(server_of(told)) as client:
        assert (await Assistant(client).refusal("doctor")).startswith("NO_DOCTOR: ")


@pytest.mark.parametrize(
    ("tool", "arguments", "words"),
    [
        ("packet", {"packet_id": "019b0000-0000-7000-8000-000000000000"}, "NOT_FOUND at packet_id: the log holds no"),
        ("session", {"session_id": "elsewhere"}, "NOT_FOUND at session_id: the log holds no session 'elsewhere': the"),
        ("replay_verify", {"run_id": "elsewhere"}, "NOT_FOUND at run_id: the log holds no run 'elsewhere': the tool"),
        ("runs", {"after": "nonsense"}, "BAD_CURSOR at after: "),
        ("packets", {"verdict": "refused"}, "INVALID at verdict: verdict needs run_id, session_id or task_id"),
        ("packets", {"session_id": "elsewhere"}, "NOT_FOUND at session_id: "),
        ("packets", {"run_id": "elsewhere"}, "NOT_FOUND at run_id: "),
        ("sessions", {"run_id": "elsewhere"}, "NOT_FOUND at run_id: "),
        ("search", {"text": "x", "run_id": "elsewhere"}, "NOT_FOUND at run_id: "),
        ("approvals", {"session_id": "elsewhere"}, "NOT_FOUND at session_id: "),
        ("dead_letters", {"session_id": "elsewhere"}, "NOT_FOUND at session_id: "),
        ("search", {"text": "late", "limt": 3}, "INVALID at limt: search has no such argument; do you mean limit?"),
        ("checkpoints", {"shard": 0}, "INVALID at shard: checkpoints has no such argument; it has none"),
        ("search", {}, "INVALID at text: Field required. It is: Words, or the end of an id: 1 to 200 characters."),
        ("search", {"text": ""}, "INVALID at text: this does not fit. It is: Words, or the end of an id"),
        (
            "runs",
            {"limit": 0},
            "INVALID at limit: Input should be greater than or equal to 1. It is: At most this many.",
        ),
    ],
)
async def test_a_refusal_has_a_code_a_field_and_what_to_do(
    assistant: Assistant, caplog: pytest.LogCaptureFixture, tool: str, arguments: dict[str, Any], words: str
) -> None:
    assert (await assistant.refusal(tool, **arguments)).startswith(words)
    assert "GET /" not in await assistant.refusal(tool, **arguments)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.long
async def test_one_caller_is_offered_what_its_role_may_do(told: WebBench) -> None:
    offered = {}
    for role in AccountRole:
        async with Client(server_of(told, role)) as client:
            offered[role] = {tool.name for tool in (await client.list_tools()).tools}
    assert offered[AccountRole.READER] - offered[AccountRole.VIEWER] == {"search", "explain", "proof", "replay_verify"}
    assert offered[AccountRole.OPERATOR] - offered[AccountRole.READER] == {"what_if", "doctor"}


async def test_a_failure_of_the_server_says_nothing_of_its_inside(told: WebBench) -> None:
    async def examine() -> list[dict[str, str]]:
        raise RuntimeError("password=hunter2")

    async with Client(server_of(told, examine=examine)) as client:
        assert await Assistant(client).refusal("doctor") == "FAILED: the server failed; its log has the reason"


async def test_resources_are_the_same_readings(assistant: Assistant) -> None:
    read = assistant.client.read_resource
    session = orjson.loads((await read(f"apc://session/{SESSION}")).contents[0].text)
    assert session["answer"]["session_id"] == SESSION and session["note"] == NOTE
    run = orjson.loads((await read(f"apc://run/{RUN}")).contents[0].text)
    assert run["answer"]["run_id"] == RUN
    packet_id = (await _ideas(assistant))[0]["packet_id"]
    packet = (await read(f"apc://packet/{packet_id}")).contents[0]
    assert orjson.loads(b64decode(packet.blob))["packet_id"] == packet_id
    assert packet.meta == {"note": NOTE}
    assert (await read("apc://log/checkpoints")).contents[0].mime_type == "application/json"
    for unknown in ("apc://session/elsewhere", "apc://packet/nonsense", "apc://session/..%2F..%2Fetc"):
        with pytest.raises(MCPError):
            await read(unknown)


async def test_an_answer_is_cut_at_a_limit_that_it_names(told: WebBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LIMIT_BYTES", 2_000)
    async with Client(server_of(told)) as client:
        whole = await Assistant(client).whole("packets", session_id=SESSION, limit=100)
    assert whole["limit_bytes"] == 2_000 and len(orjson.dumps(whole["answer"])) <= 2_000
    assert any(place.startswith("$.items: ") and " of " in place for place in whole["cut"])


@pytest.mark.parametrize("size", [100, 1_000, 10_000])
def test_texts_are_cut_before_lists_and_what_is_shown_is_said(size: int) -> None:
    value: Any = {"texts": ["é" * 5_000] * 3, "name": "kept"}
    shown, cut = cut_to(value, size)
    assert len(orjson.dumps(shown)) <= size
    assert cut if size < 30_000 else not cut
    if size >= 1_000:
        assert isinstance(shown, dict) and shown["name"] == "kept"
        assert cut[0].startswith("$.texts[0]: ") and cut[0].endswith(" of 5000 characters")


def test_what_cannot_be_cut_is_left_out() -> None:
    value: Any = {f"name {number}": number for number in range(1_000)}
    shown, cut = cut_to(value, 1_000)
    assert shown is None and cut[0].startswith("$: nothing of ")


async def test_a_viewer_reads_no_body(told: WebBench) -> None:
    async with Client(server_of(told, AccountRole.VIEWER)) as client:
        viewer = Assistant(client)
        packet_id = (await _ideas(viewer))[0]["packet_id"]
        packet = await viewer.call("packet", packet_id=packet_id)
        assert not any(packet[UNTRUSTED].values())
        assert (await viewer.refusal("search", text="idea")).startswith("NO_ROLE: this needs the role reader")
        with pytest.raises(MCPError, match="NO_ROLE"):
            await client.read_resource(f"apc://packet/{packet_id}")
