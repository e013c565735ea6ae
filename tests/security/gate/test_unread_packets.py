"""Bytes that the gate reads and the database does not: refused, or they would hide what they say, and hide others."""

import re

import pytest
from tests.orchestrator.waiting.conftest import office
from tests.orchestrator.waiting.office import Office
from tests.security.gate.test_jammed_questions import ask
from tests.security.log.test_hostile_bodies import take_away

from apc_contracts.wire import strict_json
from apc_contracts.wire.parsing import seal
from apc_log.queries.questions import list_answered, list_questions
from apc_log.queries.search import Wanted, search_log
from apc_persister.follower import Follower, empty_projections

__all__ = ["office"]

LOST_ESCAPE = """
CREATE OR REPLACE FUNCTION apc_log.document_in(body bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN replace(convert_from(body, 'UTF8'), '\\u0000', ' ')::jsonb;
EXCEPTION WHEN data_exception THEN
    RETURN NULL;
END $$
"""


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("number", [b"1e-20000", b"0." + b"0" * 17_000, b"0e999999999999"])
async def test_a_number_that_only_some_readers_take_is_refused(
    office: Office, monkeypatch: pytest.MonkeyPatch, number: bytes, is_guarded: bool
) -> None:
    """PostgreSQL takes no such number: it ended each list of questions, and hid what the packet rests on."""
    if not is_guarded:
        monkeypatch.setattr(strict_json, "_LONG_NUMBER", re.compile(b"a^"))
    house = office.house
    async with house.gate():
        task = await office.begin()
        hostile, honest = ask(task, "May I?"), ask(task, "And I?")
        body = seal(hostile.model_copy(update={"metadata": {"number": 7}})).body.replace(
            b'"number":7', b'"number":' + number
        )
        await house.publish(hostile, body=body)
        await house.publish(honest)
        await house.quiet()
        asked = {one.packet_id: one.text for one in await list_questions(house.pool)}
    assert asked == {honest.packet_id: "And I?"} | ({} if is_guarded else {hostile.packet_id: None})


@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_text_about_an_escape_hides_no_approval(office: Office, is_guarded: bool) -> None:
    house = office.house
    if not is_guarded:
        await take_away(house.pool, LOST_ESCAPE)
    async with house.gate():
        task = await office.begin()
        await house.publish(ask(task, r"Shall I remove \u0000 and Ispahan?"))
        await house.quiet()
        (question,) = await list_questions(house.pool)
        assert await office.answer("alice", question) == ("accepted", None, None)
    async with house.pool.acquire() as connection, connection.transaction():
        await empty_projections(connection)
    await Follower(house.pool).catch_up()
    assert len(await list_answered(house.pool)) == is_guarded
    assert len((await search_log(house.pool, Wanted("Ispahan"))).packets) == is_guarded
