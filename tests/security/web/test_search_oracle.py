"""Search tells what bodies hold: to nobody who may not read them, and in no language but that of words."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.security.web.test_accounts import opened
from tests.support.traffic.packets import make_idea, make_packet, make_start
from tests.web.conftest import WebBench

from apc_contracts.vocabulary import RunPhase
from apc_log.queries import search
from apc_web import roles
from apc_web.cursors import write_cursor

SECRET = "ispahan"


@pytest.fixture
async def secretive(bench: WebBench) -> AsyncIterator[WebBench]:
    """A run whose tag, and a packet whose intent, hold a secret."""
    opening = make_start().model_copy(update={"metadata": {"team": "desk", "note": SECRET}})
    async with bench.house.persister(), bench.house.gate():
        await bench.house.discover(opening)
        said = make_packet(
            "red-1", make_idea(f"go to {SECRET}"), ("sentinel",), phase=RunPhase.DISCOVERY, parent=opening
        )
        await bench.house.publish(said)
        await bench.house.quiet()
        await bench.house.followed()
        yield bench


@pytest.mark.long
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_viewer_asks_nothing_about_bodies(
    secretive: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_guarded: bool
) -> None:
    """By a filter each word could be guessed, by the count of what it leaves."""
    if not is_guarded:
        monkeypatch.setattr(roles, "_OF_BODIES", ())
    async with opened(secretive, tmp_path) as door:
        headers = await door.cookie("vera")

        async def ask(path: str) -> str:
            return (await door.client.get(f"/api/v1{path}", headers=headers)).text

        for guess in (f"text={SECRET}", f"tag=note={SECRET}"):
            told, missed = await ask(f"/runs?{guess}"), await ask(f"/runs?{guess}x")
            assert ("run-1" in told and "run-1" not in missed) is not is_guarded
            assert ("NO_ROLE" in told and "NO_ROLE" in missed) is is_guarded
        assert "NO_ROLE" in await ask(f"/search?text={SECRET}")
        seen = await ask("/runs") + await ask("/runs/run-1")
        assert SECRET not in seen and "desk" in seen
        reader = (await door.client.get(f"/api/v1/search?text={SECRET}", headers=await door.cookie("rita"))).json()
        assert len(reader["packets"]) == 2 and len(reader["runs"]) == 1


# Each word has a letter that no random id has: an id is found by its end.
HOSTILE = [
    "'", "\\", "''", "!", "!ispahan", "nothing | ispahan", "ispahan & !nothing", "(ispahan", "<->", "is<->pahan", ":*",
    "aq:*", "*", "%", "_", "i%n", "' || pg_sleep(9) || '", "'; DROP TABLE apc_log.run_cards; --", "$9q", "{}", "…",
    "....", "\u202enahapsi", "end=1-s", "agent=red-1", "'agent=red-1'", "\x1b[31m", "🙂" * 40, "x" * 200,
]  # fmt: skip


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_text_is_words_and_no_query(
    secretive: WebBench, monkeypatch: pytest.MonkeyPatch, *, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(search, "_quoted", lambda lexeme: lexeme)
    failed = set()
    for text in HOSTILE:
        for path in ("/search", "/runs"):
            answer = await secretive.client.get(f"/api/v1{path}", params={"text": text})
            if answer.status_code >= 500:
                failed.add(text)
            elif is_guarded and path == "/search":
                lines = [packet["line"] for packet in answer.json()["packets"]]
                assert (SECRET in str(lines)) is (text.strip("!(") == SECRET), text
    assert bool(failed) is not is_guarded, failed


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_search_has_a_bound(secretive: WebBench, monkeypatch: pytest.MonkeyPatch, *, is_guarded: bool) -> None:
    if not is_guarded:
        monkeypatch.setattr(search, "MOST_TERMS", 1_000)
    many = await secretive.client.get("/api/v1/search", params={"text": "a " * 90})
    assert many.status_code == (422 if is_guarded else 200)
    for text in ("x" * 10_000, "a\0b"):
        assert (await secretive.get("/search", 422, text=text))["field"] == "text"
    filters = {"text": "x", **dict.fromkeys(("run_id", "agent", "schema", "code", "since", "until"))}
    for values in ((1 << 62, 0, 0), (0, 1 << 62, 0), (0, 0)):
        answer = await secretive.client.get(
            "/api/v1/search", params={"text": "x", "after": write_cursor("search", filters, *values)}
        )
        assert answer.status_code in (200, 400), answer.text
