"""Somebody with an account acts who may not: not registered, without the right, revoked, or in another one's name."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import pytest
from tests.integration.conftest import House, house, shards
from tests.support.traffic import SESSION, make_idea, make_packet, until
from tests.web.conftest import SERVER

from apc_bus.settings import BusSettings
from apc_bus.topology import agent_queue
from apc_cli.commands import session_control
from apc_cli.commands.ui import OperatorActs
from apc_client.operator import first_operator, operator_person
from apc_client.registration import LOG_PATIENCE, addition, publish_changes, wait_until_recorded
from apc_contracts import load_contract
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.identity.registry_change import AgentRevoked, AnyChange
from apc_web import acts
from apc_web.access import AccountRole, Accounts, UserRecord, UsersDocument, UsersFile, write_users
from apc_web.app import make_app
from apc_web.guard import AccessGuard
from apc_web.live import Feed
from apc_web.pool import open_reader
from apc_web.route_services import Services

__all__ = ["house", "shards"]
PEOPLE = ("olga", "carl", "rex", "away", "mallory")
"""Accounts with the role operator: olga is registered; carl without the right; rex was revoked; away: another user."""
ACTORS = "SELECT actor FROM apc_log.packet_events WHERE 'requeued' = ANY(events)"
SENDERS = """
SELECT sender_agent_id FROM apc_log.agent_packets WHERE sender_agent_id = ANY($1) AND verdict = 'accepted' ORDER BY seq
"""


@dataclass
class Site:
    """A web server with accounts over RabbitMQ, and a dead letter."""

    house: House
    client: httpx.AsyncClient
    dead: dict[str, str]

    async def send(self, who: str, path: str, status: int = 200, **body: Any) -> Any:
        """Send a request of somebody; a body makes it an act."""
        method = "POST" if body else "GET"
        headers = {"Authorization": f"Bearer token-of-{who}"}
        answer = await self.client.request(method, f"/api/v1{path}", headers=headers, json=body or None)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def acts(self, who: str, status: int = 200) -> list[Any]:
        """Try every act that needs the right to operate."""
        return [
            await self.send(who, f"/sessions/{SESSION}/pause", status, reason="lunch"),
            await self.send(who, f"/sessions/{SESSION}/resume", status, reason="done"),
            await self.send(who, "/dead/requeue", status, deliveries=[self.dead], note="mended"),
        ]


@pytest.fixture
async def site(house: House, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("APC_AMQP_URL", house.settings.amqp_url.get_secret_value())
    tokens = {name: sha256(f"token-of-{name}".encode()).hexdigest() for name in PEOPLE}
    users = {name: UserRecord(role=AccountRole.OPERATOR, tokens={"t": tokens[name]}) for name in PEOPLE}
    write_users(tmp_path / "users.json", UsersDocument(users=users))
    accounts = Accounts(UsersFile(tmp_path / "users.json"))
    contract = load_contract()
    async with AsyncExitStack() as stack:
        pool = await open_reader(postgres_url, timedelta(seconds=10))
        stack.callback(pool.terminate)
        acts = OperatorActs(pool, BusSettings())
        services = Services(pool, contract, lambda _: None, pool, Feed(pool, contract), is_embedded=False, acts=acts)
        object.__setattr__(services, "accounts", accounts)
        transport = httpx.ASGITransport(AccessGuard(make_app(services), accounts))
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url=SERVER, timeout=30))
        await stack.enter_async_context(house.persister())
        await stack.enter_async_context(house.gate())
        await house.open_session()
        await _hire(house)
        yield Site(house, client, await _die(house))


async def _hire(house: House) -> None:
    user = house.agents.bus.user
    people = [operator_person("olga", user), operator_person("rex", user), operator_person("away", "desk")]
    people.append(Registration("carl", user, "intern", "people", kind=Kind.PERSON, via=frozenset({user})))
    changes: list[AnyChange] = [*map(addition, people), AgentRevoked(change_id=uuid4(), agent_id="rex")]
    await publish_changes(house.agents.bus, changes, 1)
    await wait_until_recorded(house.pool, changes, 1, LOG_PATIENCE)


async def _die(house: House) -> dict[str, str]:
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening)
    await house.agents.publish(sent)
    async with house.agents.bus.subscribe(agent_queue("blue-1", urgent=False)) as inbox:
        (delivery,) = await inbox.receive()
        await inbox.nack(delivery, requeue=False)
        await until(house.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))
    return {"packet_id": str(sent.packet_id), "session_id": SESSION, "recipient": "blue-1"}


async def test_a_registered_person_acts_in_their_own_name(site: Site) -> None:
    about = await site.send("olga", "/about")
    assert (about["can_act"], about["why_not"]) == (True, None)
    done = await site.acts("olga")
    assert [one["detail"]["by"] for one in done] == ["olga"] * 3
    assert [row["actor"] for row in await site.house.pool.fetch(ACTORS)] == ["olga"]
    senders = [row["sender_agent_id"] for row in await site.house.pool.fetch(SENDERS, PEOPLE)]
    assert senders == ["olga", "olga"], "PAUSE and RESUME are hers, not the server's"


WORDS = {
    "carl": "carl has no right to operate",
    "rex": "rex was revoked and may not act any more",
    "away": "away does not let the broker user",
    "mallory": "mallory is not registered: `apc agent add NAME --person --role operator --rights operate --via",
}


@pytest.mark.parametrize("who", WORDS)
async def test_nobody_acts_who_is_not_registered_for_it(site: Site, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    about = await site.send(who, "/about")
    assert not about["can_act"] and about["why_not"].startswith(WORDS[who])
    for refused in await site.acts(who, 403):
        assert refused["code"] == "NO_ACTS" and refused["detail"].startswith(WORDS[who])
    assert await site.house.pool.fetchval(ACTORS) is None
    assert not await site.house.pool.fetch(SENDERS, PEOPLE)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(OperatorActs, "why_not", _nothing)
        unguarded.setattr(session_control, "acting_operator", _anybody)
        done = await site.send(who, f"/sessions/{SESSION}/pause", reason="lunch")
        assert done["detail"]["by"] == "librarian", "an act in the server's own name would go through"


async def _nothing(self: OperatorActs, by: str | None) -> None:
    return None


async def _anybody(pool: Any, user: str, named: str | None) -> Registration:
    return await first_operator(pool, user)


async def test_a_right_that_is_taken_away_ends_at_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.send("olga", f"/sessions/{SESSION}/pause", reason="lunch")
    change = AgentRevoked(change_id=uuid4(), agent_id="olga")
    await publish_changes(site.house.agents.bus, [change], 1)
    await wait_until_recorded(site.house.pool, [change], 1, LOG_PATIENCE)
    await site.send("olga", f"/sessions/{SESSION}/resume", 403, reason="done")
    with monkeypatch.context() as unguarded:  # the gate refuses even what the server would send
        unguarded.setattr(acts, "require_operator", _unchecked)
        unguarded.setattr("apc_client.operator.why_no_acts", lambda found, user: None)
        refused = await site.send("olga", f"/sessions/{SESSION}/resume", 409, reason="done")
        assert "UNKNOWN_SENDER" in refused["detail"]


async def _unchecked(acts: Any) -> None:
    return None


async def test_two_operators_requeue_one_dead_letter_once(site: Site) -> None:
    """Both see it, both press; one act counts and the other is told so."""
    await _welcome(site, "carl")
    path, body = "/dead/requeue", {"deliveries": [site.dead]}
    answers = await asyncio.gather(
        *(
            site.client.post(f"/api/v1{path}", headers={"Authorization": f"Bearer token-of-{who}"}, json=body)
            for who in ("olga", "carl")
        )
    )
    assert 200 in {one.status_code for one in answers} <= {200, 409}
    actors = [row["actor"] for row in await site.house.pool.fetch(ACTORS)]
    assert len(actors) == 1 and actors[0] in ("olga", "carl")


async def _welcome(site: Site, who: str) -> None:
    change = addition(operator_person(who, site.house.agents.bus.user))
    await publish_changes(site.house.agents.bus, [change], 1)
    await wait_until_recorded(site.house.pool, [change], 1, LOG_PATIENCE)
