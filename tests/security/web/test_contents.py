"""Contents in the web console: no field of the new parts shows them to a viewer; hostile ones stay texts, and cheap."""

import re
from pathlib import Path
from typing import Any

import pytest
from tests.orchestrator.judging.test_task_sessions import open_task, work
from tests.security.web.test_accounts import opened
from tests.support.traffic.packets import SESSION
from tests.web.conftest import WebBench
from tests.web.reading.test_contents import told_of

from apc_contracts import CommitmentLevel, ErrorPayload
from apc_contracts.content import content_line
from apc_contracts.payloads.by_type import DecisionPayload, Result
from apc_contracts.vocabulary import PROTOCOL_1_1
from apc_web import access, contents, roles
from apc_web.access import AccountRole

SECRET = "only-readers-may-read-this"


async def told_secrets(bench: WebBench) -> dict[str, str]:
    """Log a session whose message, result and error have the secret; return the ids of the packets."""
    (message,) = await told_of(bench, {"reason": SECRET, "order": SECRET, "euros": 80})
    result = Result(schema_id="refund/1", content={"reason": SECRET, "order": "A", "euros": 1})
    done = DecisionPayload(
        decision_id="d",
        recommendation=SECRET,
        priority_distribution={},
        next_actions=(),
        commitment_level=CommitmentLevel.DONE,
        result=result,
    )
    failed = ErrorPayload(error_code="HANDLER_ERROR", message=f"KeyError: {SECRET}", retryable=False)
    sent = [work("red-1", payload, parent=message, version=PROTOCOL_1_1) for payload in (failed, done)]
    async with bench.house.persister(), bench.house.gate():
        await bench.house.open(open_task())
        for one in sent:
            await bench.house.publish(one)
        await bench.house.quiet()
    return {"message": str(message.packet_id), "done": str(sent[1].packet_id)}


@pytest.mark.long
async def test_a_viewer_reads_no_content_by_any_field(
    bench: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await told_secrets(bench)
    seq = (await bench.get(f"/packets/{ids['message']}"))["seq"]
    paths = [f"/sessions/{SESSION}", f"/packets?session_id={SESSION}&limit=500", f"/sessions/{SESSION}/lines?seq={seq}"]
    paths += ["/schemas/refund/1"]
    for one in ids.values():
        paths += [f"/packets/{one}{part}" for part in ("", "/evidence", "/tree", "/impact")]
    async with opened(bench, tmp_path) as door:
        headers = {name: await door.cookie(name) for name in ("vera", "rita")}

        async def read(name: str) -> str:
            answers = [(await door.client.get(f"/api/v1{path}", headers=headers[name])).text for path in paths]
            return "\n".join(answers)

        seen, known = await read("vera"), await read("rita")
        assert SECRET in known and known.count("NO_ROLE") == 0
        assert SECRET not in seen and seen.count("NO_ROLE") == 2, "lines and schemas are for readers"
        with monkeypatch.context() as unguarded:
            unguarded.setattr(roles, "narrowed", lambda model: model)
            unguarded.setattr(contents, "caller", lambda: access.Caller("rita", AccountRole.READER))
            assert SECRET in await read("vera")


HOSTILE = {
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "markdown": "[a bank](javascript:alert(1)) ![x](https://evil/x.png)",
    "override": "receipt \u202efdp.exe\u2066 and \u061c\u200f",
    "ansi": "\x1b[31mred\x1b]0;title\x07\x1b[2J\x9b1m\r\n\x00",
    "separators": "one\u2028two\u2029three\u0085four",
}
ACTS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_line_acts_on_no_terminal_and_shows_no_other_order(is_guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_guarded:
        monkeypatch.setattr("apc_contracts.content.one_line", str)
    lines = [
        content_line("MESSAGE", {"schema": schema, "content": {name: text}}, {}, width=500)
        for text in HOSTILE.values()
        for schema in ("note/1", text)
        for name in ("text", text)
    ]
    lines += [content_line("CLAIM", {"text": text}, {}, width=500) for text in HOSTILE.values()]
    assert bool(ACTS.search("".join(lines))) is not is_guarded
    assert any("<script>" in line for line in lines), "markup is a text like others: the page makes none of it"


class Counted(dict[str, Any]):
    """A content that counts the fields that somebody looks at."""

    looked_at = 0

    def __getitem__(self, name: str) -> Any:
        type(self).looked_at += 1
        return super().__getitem__(name)

    def items(self) -> Any:
        for item in super().items():
            type(self).looked_at += 1
            yield item


def test_a_huge_content_costs_what_its_line_shows() -> None:
    """Without the guard each of its fields would be put into words."""
    huge = Counted({f"field_{number}": number for number in range(100_000)})
    line = content_line("MESSAGE", {"schema": "note/1", "content": huge}, {})
    assert len(line) <= 160 and Counted.looked_at < 200
    assert sum(1 for _ in huge.items()) == 100_000 < Counted.looked_at
