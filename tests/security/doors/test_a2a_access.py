"""Attacks on a door of A2A by those who are not who they say, and by what they send."""

import json
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import asyncpg
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from tests.doors.a2a.conftest import A2AClient, Behind, RpcError, Running, behind, desk, made, state_of

from apc_a2a.access import CallersDocument, CallersFile, CallerTokens, Issuer, digest_of, write_callers
from apc_a2a.server import CardKey
from apc_bus.settings import sources
from apc_client.callers import add_caller, revoke_caller
from apc_client.in_process import OPERATOR
from apc_contracts.errors import InputUnusable

__all__ = ["behind"]

BODY = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": made({"text": "apples"})}}
SHARED = b"a secret that both sides have...."
STORED = "SELECT (SELECT count(*) FROM apc_log.agent_packets) + (SELECT count(*) FROM apc_app.a2a_push)"


async def status_of(client: A2AClient, body: Any = BODY, **headers: str) -> int:
    """Return the HTTP status of a request."""
    return (await client.http.post("/a2a/jsonrpc", json=body, headers=headers)).status_code


async def stored(running: Running) -> int:
    return int(await running.system.pool.fetchval(STORED))


@pytest.mark.parametrize(
    "authorization", ["", "Bearer", "Bearer no-token", "Basic aWRhOmlkYQ==", "Bearer \u00fc", "Bearer " + "a" * 9_000]
)
async def test_nobody_is_let_in_and_nothing_is_stored(behind: Behind, authorization: str) -> None:
    async with behind(desk()) as running:
        before = await stored(running)
        http = running.clients["nobody"].http
        for path in ("/a2a/jsonrpc", "/a2a/rest/message:send", "/a2a/rest/tasks", "/anything"):
            answer = await http.post(path, json=BODY, headers=[("Authorization", authorization.encode())])
            assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Bearer")
        assert await stored(running) == before
        assert state_of(await running.ida.send({"text": "apples"})) == "COMPLETED", "the act works with a token"


async def test_a_foreign_an_unknown_and_a_malformed_id_are_answered_alike(behind: Behind) -> None:
    async with behind(desk()) as running:
        asked = await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        ids = [asked["id"], "0196d0f0-0000-7000-8000-000000000000", "x", "", "\x00", asked["id"].upper(), "a" * 9_999]
        for method, more in (
            ("GetTask", {}),
            ("CancelTask", {}),
            ("SubscribeToTask", {}),
            ("SendMessage", {}),
            ("CreateTaskPushNotificationConfig", {"url": "https://example.com"}),
            ("ListTaskPushNotificationConfigs", {}),
        ):
            said = [await _refusal(running.bob, method, one, **more) for one in ids if one]
            assert len({json.dumps(one) for one in said}) == 1 and said[0]["code"] == -32001, method
        assert state_of(await running.ida.task(asked["id"])) == "INPUT_REQUIRED"
        assert (await running.bob.call("ListTasks"))["totalSize"] == 0


async def _refusal(client: A2AClient, method: str, task_id: str, **more: Any) -> Any:
    params: dict[str, Any] = {"id": task_id, "taskId": task_id, **more}
    if method == "SendMessage":
        params = {"message": made({"text": "yes"}, taskId=task_id)}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return (await client.http.post("/a2a/jsonrpc", json=body)).json()["error"]


async def test_a_revoked_caller_and_one_of_another_door_are_nobody(behind: Behind) -> None:
    async with behind(desk()) as running:
        bus, pool = running.system.connect(OPERATOR), running.system.pool
        assert await status_of(running.ida) == 200
        await revoke_caller(bus, pool, 1, "ida")
        await add_caller(bus, pool, 1, "bob", "other-door")
        running.served.callers._read_at = None  # the registry as it was read ends after seconds
        assert [await status_of(one) for one in (running.ida, running.bob)] == [401, 401]


def test_a_token_of_the_web_console_is_none_of_the_door_and_the_other_way_round(tmp_path: Path) -> None:
    file, token = tmp_path / "callers.json", "the-same-token-at-both"
    plain = sha256(token.encode()).hexdigest()
    write_callers(file, CallersDocument(callers={"ida": CallerTokens(tokens={"web": plain})}))
    assert CallersFile(file).name_of(token) is None and digest_of(token) != plain
    write_callers(file, CallersDocument(callers={"ida": CallerTokens(tokens={"a2a": digest_of(token)})}))
    assert CallersFile(file).name_of(token) == "ida"


def test_a_file_that_others_can_read_lets_nobody_in(tmp_path: Path) -> None:
    file = tmp_path / "callers.json"
    write_callers(file, CallersDocument(callers={"ida": CallerTokens(tokens={"a2a": digest_of("secret")})}))
    assert CallersFile(file).name_of("secret") == "ida"
    file.chmod(0o644)
    assert CallersFile(file).name_of("secret") is None
    file.chmod(0o600)
    file.write_text("{")
    assert CallersFile(file).name_of("secret") is None


def test_callers_in_a_mounted_secret_are_read_unless_others_may_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine mounts a link, or a file that everybody in the container may read; elsewhere neither is taken."""
    real, file = tmp_path / "..data/callers.json", tmp_path / "callers.json"
    write_callers(real, CallersDocument(callers={"ida": CallerTokens(tokens={"a2a": digest_of("secret")})}))
    file.symlink_to("..data/callers.json")
    real.chmod(0o444)
    assert CallersFile(file).name_of("secret") is None
    monkeypatch.setattr(sources, "SECRETS", tmp_path)
    assert CallersFile(file).name_of("secret") == "ida"
    real.chmod(0o464)
    assert CallersFile(file).name_of("secret") is None


def test_a_token_of_an_issuer_is_of_one_door_and_one_time(tmp_path: Path) -> None:
    good, other = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
    keys, kid = tmp_path / "jwks.json", CardKey(good).public_jwk["kid"]
    symmetric = {"kty": "oct", "k": b64encode(SHARED).decode().rstrip("="), "kid": "shared", "alg": "HS256"}
    keys.write_text(json.dumps({"keys": [CardKey(good).public_jwk, symmetric]}))
    door, now = Issuer("https://issuer", "door-1", keys), datetime.now(UTC)
    claims = {"iss": "https://issuer", "aud": "door-1", "sub": "ida", "exp": now + timedelta(minutes=1)}

    def token(key: Any = good, algorithm: str = "EdDSA", kid: str = kid, **changed: Any) -> str:
        said = {name: value for name, value in (claims | changed).items() if value is not None}
        return jwt.encode(said, key, algorithm, headers={"kid": kid})

    assert door.name_of(token()) == "ida"
    public = good.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    for forged in (
        token(other),
        token(aud="door-2"),
        token(iss="https://elsewhere"),
        token(exp=now - timedelta(minutes=1)),
        token(exp=None),
        token(sub=None),
        token(kid="unknown"),
        token(None, "none"),
        token(public, "HS256"),
        token(SHARED, "HS256", "shared"),
        "a.b.c",
        "",
    ):
        assert door.name_of(forged) is None
    keys.write_text("{}")
    with pytest.raises(InputUnusable, match="no JSON Web Key Set"):
        Issuer("https://issuer", "door-1", keys)


async def test_bombs_and_oversized_parts_are_refused_before_they_are_parsed(behind: Behind) -> None:
    async with behind(desk(), a2a_most_bytes=100_000) as running:
        http, before = running.ida.http, await stored(running)
        deep = b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":' + b"[" * 40_000 + b"]" * 40_000 + b"}"
        nested: Any = "x"
        for _ in range(500):
            nested = [nested]
        kinds = {"content-type": "application/json"}
        assert (await http.post("/a2a/jsonrpc", content=deep, headers=kinds)).json()["error"]["code"] == -32700
        assert (await http.post("/a2a/rest/message:send", content=deep, headers=kinds)).status_code == 400
        with pytest.raises(RpcError) as refused:
            await running.ida.send({"data": nested})
        assert refused.value.code == -32602
        assert await status_of(running.ida, BODY | {"more": "x" * 100_000}) == 413

        async def endless() -> Any:
            for _ in range(20):
                yield b"x" * 10_000

        assert (await http.post("/a2a/jsonrpc", content=endless(), headers=kinds)).status_code == 413
        batch = [BODY] * 100
        assert (await http.post("/a2a/jsonrpc", json=batch)).json()["error"]["code"] == -32600
        text = await http.post("/a2a/jsonrpc", content=b"x", headers={"content-type": "text/plain"})
        assert text.json()["error"]["code"] == -32005
        assert await stored(running) == before
        assert state_of(await running.ida.send({"text": "apples"})) == "COMPLETED"


async def test_a_page_of_another_origin_or_name_is_refused(behind: Behind) -> None:
    async with behind(desk()) as running:
        assert await status_of(running.ida, Origin="https://evil.example") == 403
        assert await status_of(running.ida, Host="evil.example") == 421


async def test_a_replayed_message_answers_no_second_question(behind: Behind) -> None:
    """The answer names what was asked: sent again it finds the task ended, and begins nothing."""
    async with behind(desk()) as running:
        asked = await running.ida.send({"data": {"text": "a boat", "amount": 700}})
        for expected in (200, -32004):
            body = BODY | {"params": {"message": made({"text": "yes"}, taskId=asked["id"], message_id="m-9")}}
            said = (await running.ida.http.post("/a2a/jsonrpc", json=body)).json()
            assert said.get("error", {}).get("code", 200) == expected
        assert (await running.ida.call("ListTasks"))["totalSize"] == 1


async def test_what_fails_inside_is_told_without_its_words(behind: Behind, monkeypatch: pytest.MonkeyPatch) -> None:
    async with behind(desk()) as running:
        client = await running.served.callers.client("ida")

        async def fail(*_: object, **__: object) -> object:
            raise RuntimeError("password=hunter2")

        async def away(*_: object, **__: object) -> object:
            raise asyncpg.CannotConnectNowError("the database system is starting up")

        monkeypatch.setattr(client, "sessions", fail)
        answer = await running.ida.http.post("/a2a/jsonrpc", json=BODY | {"method": "ListTasks", "params": {}})
        assert answer.json()["error"]["code"] == -32603 and "hunter2" not in answer.text
        monkeypatch.setattr(client, "sessions", away)
        for path in ("/a2a/jsonrpc", "/a2a/rest/tasks"):
            body = BODY | {"method": "ListTasks", "params": {}}
            http = running.ida.http
            waits = await (http.post(path, json=body) if "rpc" in path else http.get(path))
            assert (waits.status_code, waits.headers["retry-after"]) == (503, "5") and "starting" not in waits.text
