"""Somebody logs in who must not, keeps a login that has ended, or sees and does more than their role allows."""

import asyncio
import itertools
import json
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from ipaddress import ip_network
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any
from uuid import uuid4

import httpx2 as httpx
import orjson
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope, Send
from tests.support.reference.web_api import roles_of_routes
from tests.support.traffic.packets import make_packet
from tests.web.conftest import SERVER, WebBench

from apc_bus.folders import locked
from apc_bus.settings import WebSettings
from apc_cli.commands.ui import reach_of
from apc_cli.commands.user import set_user
from apc_contracts import SignalPayload
from apc_contracts.errors import InputUnusable
from apc_contracts.vocabulary import Signal
from apc_log.queries import list_agent_packets
from apc_web import access as logins
from apc_web import app as web_app
from apc_web import guard, roles
from apc_web import throttle as throttling
from apc_web.access import (
    COOKIE,
    IDLE_SECONDS,
    LOCAL_USER,
    LONGEST_SECONDS,
    AccountRole,
    Accounts,
    Caller,
    UserRecord,
    UsersDocument,
    UsersFile,
    hash_password,
    read_users,
    write_users,
)
from apc_web.acts import EffectSummary, FollowingEffect
from apc_web.app import DOCUMENT, make_app
from apc_web.evidence import GroundEffect
from apc_web.guard import LOOK_AGAIN_SECONDS, AccessGuard, BehindProxies
from apc_web.models import ApiModel, Shown
from apc_web.throttle import LoginThrottle
from apc_web.verdict_words import ruling_of

PASSWORD = "correct horse battery"
HASH = hash_password(PASSWORD)
SECRET = "zebra-in-the-log"
ORIGIN = {"Origin": SERVER}
ROUTES: dict[str, dict[str, Any]] = orjson.loads(DOCUMENT.read_bytes())["paths"]


class Clock:
    """Seconds that a test moves."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Door:
    """A server with accounts, and who stands before it."""

    file: Path
    accounts: Accounts
    clock: Clock
    client: httpx.AsyncClient
    app: Any
    pauses: list[float]
    may_go_on: asyncio.Event
    """Pauses end while it is set."""

    def write(self, **roles_: AccountRole) -> None:
        write_users(
            self.file,
            UsersDocument(users={name: UserRecord(role=role, password=HASH) for name, role in roles_.items()}),
        )

    async def login(self, name: str, password: str = PASSWORD) -> httpx.Response:
        body = json.dumps({"name": name, "password": password})  # in ASCII: a password may be no text
        headers = {"Content-Type": "application/json", **ORIGIN}
        return await self.client.post("/api/v1/login", content=body, headers=headers)

    async def cookie(self, name: str) -> dict[str, str]:
        answer = await self.login(name)
        assert answer.status_code == 204, answer.text
        self.client.cookies.clear()
        return {"Cookie": answer.headers["set-cookie"].partition(";")[0], **ORIGIN}

    async def status(self, headers: dict[str, str], path: str = "/about") -> int:
        return (await self.client.get(f"/api/v1{path}", headers=headers)).status_code


@asynccontextmanager
async def opened(bench: WebBench, folder: Path) -> AsyncIterator[Door]:
    clock, file = Clock(), folder / "users.json"
    write_users(file, UsersDocument())
    pauses: list[float] = []
    may_go_on = asyncio.Event()
    may_go_on.set()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await may_go_on.wait()

    accounts = Accounts(UsersFile(file), clock, LoginThrottle(clock, pause))
    object.__setattr__(bench.services, "accounts", accounts)
    app = make_app(bench.services)
    transport = httpx.ASGITransport(AccessGuard(app, accounts, clock))
    async with httpx.AsyncClient(transport=transport, base_url=SERVER) as client:
        door = Door(file, accounts, clock, client, app, pauses, may_go_on)
        door.write(vera=AccountRole.VIEWER, rita=AccountRole.READER, olga=AccountRole.OPERATOR)
        yield door


@pytest.fixture
async def door(bench: WebBench, tmp_path: Path) -> AsyncIterator[Door]:
    async with opened(bench, tmp_path) as made:
        yield made


async def test_nobody_is_let_in_with_a_wrong_password_or_name(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, password in (
        ("rita", "x" * 20),
        ("rita", ""),
        ("rita", "half a pair \ud800"),
        ("nobody", PASSWORD),
        ("RITA", PASSWORD),
        (LOCAL_USER, ""),
    ):
        answer = await door.login(name, password)
        assert (answer.status_code, answer.json()["code"]) == (
            401,
            "WRONG_LOGIN",
        ) and "set-cookie" not in answer.headers
    assert await door.status({}) == 401
    assert await door.status({"Cookie": f"{COOKIE}=made-up"}) == 401
    cookie = (await door.cookie("rita"))["Cookie"]
    assert await door.status({"Cookie": f"{cookie}; {COOKIE}=other"}) == 401, "one cookie, not two"
    assert await door.status({"Authorization": f"Bearer {cookie}", "Cookie": cookie}) == 401, "one proof, not two"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(logins, "is_password", lambda user, password: user is not None)
        assert (await door.login("rita", "x" * 20)).status_code == 204


async def test_a_login_sets_a_cookie_for_this_host_and_for_no_script(door: Door) -> None:
    unguarded = "apc=1; Path=/"  # what a plain cookie would be
    given = (await door.login("rita")).headers["set-cookie"]
    for part in ("Secure", "HttpOnly", "SameSite=strict", "Path=/"):
        assert part in given and ("Domain" not in given) and given.startswith("__Host-")
        assert part == "Path=/" or part not in unguarded


async def test_a_login_ends_by_logout_time_idleness_and_change(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def after(act: Callable[[dict[str, str]], Awaitable[object]]) -> int:
        door.write(rita=AccountRole.READER)
        headers = await door.cookie("rita")
        assert await door.status(headers) == 200
        await act(headers)
        return await door.status(headers)

    async def logout(headers: dict[str, str]) -> None:
        assert (await door.client.post("/api/v1/logout", headers=headers)).status_code == 204

    async def idle(headers: dict[str, str]) -> None:
        door.clock.now += IDLE_SECONDS

    async def half_a_day(headers: dict[str, str]) -> None:
        for _ in range(round(LONGEST_SECONDS / 1_800)):
            door.clock.now += 1_800
            await door.status(headers)

    async def removed(headers: dict[str, str]) -> None:
        door.write(vera=AccountRole.VIEWER)

    async def promoted(headers: dict[str, str]) -> None:
        door.write(rita=AccountRole.OPERATOR)

    async def unusable(headers: dict[str, str]) -> None:
        door.file.chmod(0o644)
        door.file.write_text(door.file.read_text() + " ")

    assert [await after(act) for act in (logout, idle, half_a_day, removed, promoted, unusable)] == [401] * 6
    door.file.unlink()
    with monkeypatch.context() as unguarded:
        unguarded.setattr(Accounts, "_is_over", lambda self, login: False)
        assert [await after(act) for act in (idle, half_a_day)] == [200, 200]


def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare passwords without argon2: these tests are about how often."""
    monkeypatch.setattr(logins, "is_password", lambda user, password: user is not None and password == PASSWORD)


async def test_passwords_are_not_tried_one_after_the_other(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    cheap(monkeypatch)
    tried = [(await door.login("rita", f"wrong password {number}")).status_code for number in range(9)]
    assert tried == [401] * 9 and door.pauses == [0, 0, 0, 0, 0, 0.5, 1, 2, 3]
    door.may_go_on.clear()
    at_once = [asyncio.create_task(door.login("rita", "wrong password")) for _ in range(9)]
    async with asyncio.timeout(60):
        for turned_away in itertools.islice(asyncio.as_completed(at_once), 5):
            assert (await turned_away).status_code == 429
    door.may_go_on.set()
    assert sorted(one.status_code for one in await asyncio.gather(*at_once)) == [401] * 4 + [429] * 5
    door.pauses.clear()
    assert (await door.login("vera")).status_code == 204 and door.pauses == [0], "others log in"
    assert (await door.login("rita")).status_code == 204, "the right password passes"
    assert (await door.login("rita")).status_code == 204 and door.pauses == [0, 3, 0]
    for number in range(30):
        await door.login(f"somebody-{number}", "wrong password")
    assert door.pauses[-1] == 3, "nor by trying names"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(LoginThrottle, "delay", lambda self, name, source: 0.0)
        for number in range(8):
            await door.login("rita", f"wrong password {number}")
        assert door.pauses[-8:] == [0] * 8


def test_wrong_names_do_not_push_a_name_out_that_is_under_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "_MOST_KEPT", 100)

    def pause_after_a_flood() -> float:
        throttle = LoginThrottle()
        for _ in range(8):
            throttle.note("rita", "2001:db8::", is_right=False)
        for number in range(1_000):
            throttle.note(f"nobody-{number}", f"192.0.2.{number % 250}", is_right=False)
        return throttle.delay("rita", "2001:db8::")

    assert pause_after_a_flood() == 3
    with monkeypatch.context() as unguarded:
        unguarded.setattr(throttling, "min", lambda kept, key: next(iter(kept)), raising=False)
        assert pause_after_a_flood() == 0, "by age alone it is forgotten"


def test_a_viewer_reads_no_key_of_an_effect() -> None:
    """As the handler wrote it: `refund of SECRET`."""
    now = datetime.now(UTC)
    told: dict[str, Any] = {"packet_id": uuid4(), "agent_id": "a", "key": f"refund of {SECRET}", "state": "MADE"}
    summary = EffectSummary(
        **told, session_id="s", worker="w", claimed_at=now, made_at=now, problem=None, settled_by=None
    )
    ground = GroundEffect(**told, shard=0, seq=1, at=now, reference=None)
    for effect in (summary, FollowingEffect(**told), ground):
        assert SECRET in str(effect), "an operator settles it by its key"
        assert SECRET not in str(roles.narrowed(effect))


async def test_nobody_is_kept_out_by_what_others_try(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attacker who tries passwords of an account does it from elsewhere, and slows down that place alone."""

    cheap(monkeypatch)

    def of(address: str) -> httpx.AsyncClient:
        guarded = AccessGuard(door.app, door.accounts, door.clock)
        return httpx.AsyncClient(transport=httpx.ASGITransport(guarded, client=(address, 1)), base_url=SERVER)

    async def logged_in(client: httpx.AsyncClient, password: str) -> int:
        body = {"name": "rita", "password": password}
        return (await client.post("/api/v1/login", json=body, headers=ORIGIN)).status_code

    async with of("2001:db8::1") as attacker, of("2001:db8::2") as neighbour, of("2001:db8:0:1::1") as owner:
        for _ in range(12):
            await logged_in(attacker, "wrong password")
        assert door.pauses[-1] == 3
        assert await logged_in(neighbour, "wrong password") == 401 and door.pauses[-1] == 3, "the same network"
        assert await logged_in(owner, PASSWORD) == 204 and door.pauses[-1] == 0
        with monkeypatch.context() as unguarded:
            unguarded.setattr("apc_web.login.source_of", lambda address: "")
            for _ in range(12):
                await logged_in(attacker, "wrong password")
            assert await logged_in(owner, PASSWORD) == 204 and door.pauses[-1] == 3, "by name alone they would"


async def test_a_new_password_ends_the_logins_of_the_old_one(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("APC_WEB_USERS_FILE", str(door.file))
    thief, other = await door.cookie("rita"), await door.cookie("vera")
    set_user("rita", "reader", "a quite new password")
    assert await door.status(thief) == 401 and await door.status(other) == 200
    assert (await door.login("rita")).status_code == 401
    with monkeypatch.context() as unguarded:
        thief = await door.cookie("vera")
        old = UsersDocument(users={"vera": UserRecord(role=AccountRole.VIEWER, password=HASH)})
        unguarded.setattr(logins, "read_users", lambda path: old)
        set_user("vera", "viewer", "a quite new password")
        assert await door.status(thief) == 200, "a login lasts where the change of its password is not seen"


@pytest.mark.long
async def test_browsers_are_told_to_use_tls_alone(door: Door) -> None:
    async def told(base: str, app: Any) -> str | None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as client:
            answers = [await client.get(path, headers=PROXIED) for path in ("/", "/api/v1/about")]
            assert len({one.headers.get("strict-transport-security") for one in answers}) == 1
            return answers[0].headers.get("strict-transport-security")

    guarded = AccessGuard(door.app, door.accounts, door.clock)
    proxied = BehindProxies(guarded, [ip_network("127.0.0.1/32")])
    assert await told("https://127.0.0.1:8083", guarded) == "max-age=31536000"
    assert await told(SERVER, proxied) == "max-age=31536000", "the proxy speaks TLS"
    assert await told(SERVER, guarded) is None, "without TLS a browser could not come back"


PROXIED = {"X-Forwarded-Proto": "https"}


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("198.51.100.7", "198.51.100.7"),
        ("198.51.100.7, 203.0.113.9", "203.0.113.9"),
        ("198.51.100.7, 203.0.113.9, 127.0.0.1", "203.0.113.9"),
        ("made up, 203.0.113.9", "203.0.113.9"),
        ("", "127.0.0.1"),
        ("10.0.0.1,", "127.0.0.1"),
    ],
)
async def test_what_a_client_says_before_the_proxy_is_not_its_address(forwarded: str, client: str) -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["client"][0])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    unguarded = forwarded.split(",")[0].strip()  # whom the first address would name, as anybody may write it
    transport = httpx.ASGITransport(BehindProxies(app, [ip_network("127.0.0.1/32")]))
    async with httpx.AsyncClient(transport=transport, base_url=SERVER) as asking:
        assert (await asking.get("/", headers=PROXIED | {"X-Forwarded-For": forwarded})).status_code == 204
    assert seen == [client] and (client == unguarded) is (forwarded == "198.51.100.7")


def test_two_administrators_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them removes does not come back by the other's change."""
    file = tmp_path / "users.json"
    monkeypatch.setenv("APC_WEB_USERS_FILE", str(file))
    change = "from apc_cli.commands.user import {}; import sys; sys.stdin.readline(); {}"
    removing = change.format("remove_user", "remove_user('mallory')")
    adding = change.format("set_user", "set_user('zoe', 'viewer', None)")
    set_user("mallory", "operator", PASSWORD)
    with locked(file):
        both = [Popen([sys.executable, "-c", code], stdin=PIPE) for code in (adding, removing)]
        for one in both:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.close()
        with pytest.raises(TimeoutExpired):  # without the lock both would have read the file by now
            both[0].wait(2)
        set_user_unguarded(file, "olga")
    assert [one.wait(60) for one in both] == [0, 0]
    assert set(read_users(file).users) == {"olga", "zoe"}


def set_user_unguarded(file: Path, name: str) -> None:
    """Write an account as one who holds the lock."""
    users = read_users(file).users
    write_users(file, UsersDocument(users={**users, name: UserRecord(role=AccountRole.VIEWER)}))


async def test_a_page_of_another_origin_cannot_act_with_the_cookie(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie = {"Cookie": (await door.cookie("olga"))["Cookie"]}
    path, body = "/api/v1/sessions/s-1/stop", {"reason": "x"}
    answer = await door.client.post(path, headers=cookie, json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "NO_ORIGIN")
    assert (await door.client.post(path, headers={**cookie, **ORIGIN}, json=body)).json()["code"] == "NO_ACTS"
    with monkeypatch.context() as unguarded:
        unguarded.setattr(guard, "_READS", {"GET", "POST"})
        assert (await door.client.post(path, headers=cookie, json=body)).json()["code"] == "NO_ACTS"


async def test_each_route_needs_its_role(door: Door) -> None:
    unguarded = httpx.ASGITransport(door.app)
    needed = roles_of_routes()
    headers = {name: await door.cookie(name) for name in ("vera", "rita", "olga")}
    async with httpx.AsyncClient(transport=unguarded, base_url=SERVER) as open_client:
        for route, methods in ROUTES.items():
            for method, operation in methods.items():
                name = operation["operationId"]
                role = needed[name]
                if role is None or name in ("get_stream", "get_chat_events"):
                    continue
                path = re.sub(r"\{[^}]+\}", _example, route)
                body: dict[str, Any] = {"json": {"deliveries": []}} if method == "post" else {}
                if role is not AccountRole.VIEWER:
                    assert (await open_client.request(method, path, **body)).json()["code"] != "NO_ROLE"
                for person, theirs in (
                    ("vera", AccountRole.VIEWER),
                    ("rita", AccountRole.READER),
                    ("olga", AccountRole.OPERATOR),
                ):
                    answer = await door.client.request(method, path, headers=headers[person], **body)
                    refused = answer.status_code == 403 and answer.json()["code"] == "NO_ROLE"
                    assert refused is not theirs.includes(role), (name, person, answer.text)


def _example(found: "re.Match[str]") -> str:
    return {"{act}": "pause", "{packet_id}": "00000000-0000-4000-8000-000000000000", "{seq}": "1"}.get(found[0], "s-1")


async def test_a_viewer_reads_no_body_and_no_text_that_tells_of_one(
    told: WebBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await told.house.publish(
        make_packet("librarian", SignalPayload(signal=Signal.STOP, reason=SECRET), parent=told.house.opening)
    )
    await told.house.quiet()
    packets = (await told.get("/packets", session_id="s-1", limit=500))["items"]
    stop = next(one for one in reversed(packets) if one["sender"] == "librarian")
    async with opened(told, tmp_path) as door:
        headers = {name: await door.cookie(name) for name in ("vera", "rita")}
        paths = [
            "/runs", "/sessions", "/sessions/s-1", "/sessions/s-1/moves", "/sessions/s-1/scores",
            "/sessions/s-1/timeline", f"/sessions/s-1/at/{stop['seq']}", "/packets?session_id=s-1&limit=500",
            f"/packets/{stop['packet_id']}", f"/packets/{stop['packet_id']}/tree", "/dead", "/approvals", "/tasks",
            "/effects", "/arbitrations", f"/packets/{stop['packet_id']}/body", f"/packets/{stop['packet_id']}/proof",
        ]  # fmt: skip

        async def read(name: str) -> str:
            found = [(await door.client.get(f"/api/v1{path}", headers=headers[name])).text for path in paths]
            return "\n".join(found)

        assert SECRET in await read("rita")
        seen = await read("vera")
        assert SECRET not in seen and '"message":"' not in seen
        assert seen.count("NO_ROLE") == 2, "the bytes and the proof"
        searched = await door.client.get(f"/api/v1/packets?session_id=s-1&text={SECRET}", headers=headers["vera"])
        assert searched.json()["code"] == "NO_ROLE", "whether it is found would tell"
        with monkeypatch.context() as unguarded:
            unguarded.setattr(roles, "narrowed", lambda model: model)
            assert SECRET in await read("vera")


async def test_a_viewer_sees_the_rule_but_not_what_it_read(told: WebBench) -> None:
    (row,) = await list_agent_packets(told.services.pool, session_id="s-1", limit=1)
    words = {"code": "RULE_FAILED", "rule": "calm", "path": "payload", "message": SECRET}
    ruled = words | {"requires": "content.name != 'x'", "values": {"content.name": SECRET}, "remedy": "Ask first."}

    ruling = ruling_of(replace(row, verdict="refused", refusal=ruled), [])
    seen = roles.narrowed(ruling)

    assert ruling.values == {"content.name": SECRET}
    assert (seen.rule, seen.requires, seen.remedy) == ("calm", "content.name != 'x'", "Ask first.")
    assert not seen.values and SECRET not in str(seen)


class Word(ApiModel):
    """An answer of which one field has no mark."""

    name: Shown[str]
    secret: str


class Words(Word):
    """Fields of a base keep their marks; what is below one without a mark is as hidden as it is."""

    count: int
    inner: Shown[Word]
    items: Shown[list[Word]]
    others: list[Word]


async def test_a_field_without_a_mark_is_empty_for_a_viewer() -> None:
    async def read(*, is_guarded: bool) -> str:
        router = APIRouter(route_class=roles.RoleRoute if is_guarded else APIRoute)

        @router.get("/words", response_model=Words)
        @roles.needs(AccountRole.VIEWER)
        async def words() -> Words:
            one = Word(name="seen", secret=SECRET)
            return Words(name="seen", secret=SECRET, count=7, inner=one, items=[one], others=[one])

        app = FastAPI()
        app.include_router(router)
        logins.say_caller(Caller("vera", AccountRole.VIEWER))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=SERVER) as client:
            return (await client.get("/words")).text

    assert (await read(is_guarded=False)).count(SECRET) == 4, "the route is what hides it"
    empty = {"name": "seen", "secret": ""}
    assert orjson.loads(await read(is_guarded=True)) == {
        **empty, "count": 0, "inner": empty, "items": [empty], "others": [],
    }  # fmt: skip


async def test_a_route_without_a_mark_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unmarked(name: str) -> str:
        return name

    plain = APIRouter(tags=["words"])
    plain.get("/words/{name}")(unmarked)
    unguarded = FastAPI()
    unguarded.include_router(plain)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(unguarded), base_url=SERVER) as client:
        assert (await client.get(f"/words/{SECRET}")).status_code == 200, "it starts, and answers everybody"
    with pytest.raises(TypeError, match=r"^the route /words/\{name\} \(unmarked\) names no role: "):
        APIRouter(route_class=roles.RoleRoute).get("/words/{name}")(unmarked)
    monkeypatch.setattr(web_app, "ROUTERS", (*web_app.ROUTERS, plain))
    with pytest.raises(TypeError, match=r"^the router of \['words'\] has a route that asks for no role"):
        make_app(None)


async def test_a_stream_ends_when_its_reader_is_logged_out(door: Door) -> None:
    async def run(is_guarded: bool) -> list[bytes]:
        door.write(rita=AccountRole.READER)
        headers = await door.cookie("rita")
        scope = {
            "type": "http", "method": "GET", "path": "/api/v1/stream", "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        sent: list[bytes] = []

        async def events(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for number in range(4):
                await send({"type": "http.response.body", "body": b"event", "more_body": True})
                if number == 1 and is_guarded:
                    door.write(vera=AccountRole.VIEWER)
                door.clock.now += LOOK_AGAIN_SECONDS

        async def send(message: Message) -> None:
            sent.append(message.get("body", b""))

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        try:
            await AccessGuard(events, door.accounts, door.clock)(scope, receive, send)
        except OSError:
            assert is_guarded
        return [one for one in sent if one]

    assert len(await run(is_guarded=False)) == 4
    assert len(await run(is_guarded=True)) == 2


@pytest.mark.parametrize("fault", ["readable by others", "a link", "of bcrypt", "another role"])
def test_a_file_of_accounts_that_others_could_have_made_is_refused(tmp_path: Path, fault: str) -> None:
    unguarded = tmp_path / "users.json"
    write_users(unguarded, UsersDocument(users={"rita": UserRecord(role=AccountRole.READER, password=HASH)}))
    assert read_users(unguarded).users["rita"].role is AccountRole.READER
    file = unguarded
    if fault == "readable by others":
        file.chmod(0o640)
    elif fault == "a link":
        file = tmp_path / "link.json"
        file.symlink_to(unguarded)
    elif fault == "of bcrypt":
        file.write_text(file.read_text().replace("argon2id", "2b"))
    else:
        file.write_text(file.read_text().replace("reader", "root"))
    with pytest.raises(InputUnusable):
        read_users(file)


def test_a_server_that_others_reach_has_accounts_tls_and_names(tmp_path: Path) -> None:
    file = tmp_path / "users.json"
    write_users(file, UsersDocument())
    proxies: dict[str, Any] = {"web_users_file": file, "web_trusted_proxies": (ip_network("10.0.0.0/8"),)}
    unguarded = WebSettings(**proxies, web_hosts=("console.example.com",))
    assert reach_of("0.0.0.0:8083", unguarded).accounts is not None
    refused: list[dict[str, Any]] = [{}, {"web_users_file": file}, proxies, {"web_hosts": ("a.example",)}]
    for settings in refused:
        with pytest.raises(InputUnusable):
            reach_of("0.0.0.0:8083", WebSettings(**settings))
    with pytest.raises(InputUnusable, match="passwords need TLS"):
        reach_of("127.0.0.1:8083", WebSettings(web_users_file=file))


async def test_only_a_trusted_proxy_is_answered_and_only_for_https(door: Door) -> None:
    unguarded = httpx.ASGITransport(AccessGuard(door.app, door.accounts), client=("192.0.2.9", 1))
    async with httpx.AsyncClient(transport=unguarded, base_url=SERVER) as client:
        assert (await client.get("/api/v1/about")).json()["code"] == "LOGIN"
    for address, proto, code in (
        ("192.0.2.9", "https", "NOT_A_PROXY"),
        ("10.0.0.7", None, "NO_TLS"),
        ("10.0.0.7", "http", "NO_TLS"),
        ("10.0.0.7", "https", "LOGIN"),
    ):
        guarded = BehindProxies(AccessGuard(door.app, door.accounts), [ip_network("10.0.0.7/32")])
        headers = {} if proto is None else {"X-Forwarded-Proto": proto}
        transport = httpx.ASGITransport(guarded, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url=SERVER, headers=headers) as client:
            assert (await client.get("/api/v1/about")).json()["code"] == code


async def test_an_api_token_is_known_by_its_hash_alone(door: Door) -> None:
    token = "t" * 43
    unguarded = sha256(token.encode()).hexdigest()
    record = UserRecord(role=AccountRole.READER, tokens={"ci": unguarded})
    write_users(door.file, UsersDocument(users={"ci": record}))
    assert await door.status({"Authorization": f"Bearer {token}"}) == 200
    assert await door.status({"Authorization": f"Bearer {unguarded}"}) == 401, "who reads the file has no token"
    assert (await door.login("ci", "")).status_code == 401
