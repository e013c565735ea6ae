"""`apc packet substrate`, as an operator runs it beside the services."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import House
from tests.support.apc_command import ApcCommand
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.port import Delivery, Message
from apc_cli.commands.packet import _as_json, offset_of
from apc_cli.errors import InputUnusable
from apc_contracts.vocabulary import DeliveryMode


async def say(house: House) -> str:
    """Return a packet that is in the stream; its id."""
    sent = make_packet("red-1", make_idea(), ("_substrate",), parent=house.opening, mode=DeliveryMode.SUBSTRATE)
    await house.agents.publish(sent)
    await until(house.has_come_to("ARCHIVED", sent.packet_id, "_substrate"))
    return str(sent.packet_id)


@pytest.mark.long
async def test_the_stream_is_read_from_any_offset_and_followed(running: House, tmp_path: Path) -> None:
    apc, given = ApcCommand(tmp_path), {"APC_AMQP_URL": running.settings.amqp_url.get_secret_value()}

    async def read(*arguments: str) -> list[dict[str, Any]]:
        done = await asyncio.to_thread(apc, "packet", "substrate", *arguments, given=given)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    ids = [await say(running), await say(running)]
    found = await read()
    assert [one["packet_id"] for one in found] == ids
    assert [one["packet"]["packet_type"] for one in found] == ["IDEA", "IDEA"]
    assert await read("--from", str(found[0]["offset"] + 1)) == found[1:]
    assert await read("--limit", "1") == found[:1]

    following = apc.start("packet", "substrate", "--from", str(found[1]["offset"]), "--follow", given=given)
    try:
        assert following.stdout is not None
        async with asyncio.timeout(60):
            assert json.loads(await asyncio.to_thread(following.stdout.readline)) == found[1]
            last = await say(running)
            assert json.loads(await asyncio.to_thread(following.stdout.readline))["packet_id"] == last
    finally:
        following.kill()
        await asyncio.to_thread(following.communicate)


@pytest.mark.parametrize("levels", [200, 300, 2000])
def test_a_body_that_no_packet_can_be_is_printed_as_none(levels: int) -> None:
    """What one reader takes at this depth, the writer of the line does not."""
    body = b'{"a":' * levels + b"1" + b"}" * levels
    printed = json.loads(_as_json(Delivery(Message(body, "m"), 1, "", False, 3)))
    assert printed == {"offset": 3, "packet_id": "m", "packet": None}


@pytest.mark.parametrize("text", ["", "-1", "second", "1" * 19, "²"])
def test_an_offset_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(InputUnusable, match="--from"):
        offset_of(text)
