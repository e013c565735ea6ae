"""Anybody sends cookies: before Python 3.11.10 and 3.12.5 its reader takes half a minute for 60 KB of backslashes.

Source: CVE-2024-7592.
"""

import http.cookies
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from apc_web import access
from apc_web.access import COOKIE, Accounts, UserRecord, UsersDocument, UsersFile, hash_password, write_users
from apc_web.guard import AccessGuard

SERVER = "http://127.0.0.1:8083"
BACKSLASHES = f'{COOKIE}="{chr(92) * 100}"'
PASSWORD = "correct horse battery"


@pytest.fixture
def unquoted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Python's reader of cookies is given to take apart."""
    given: list[str] = []

    def take(text: str) -> str:
        given.append(text)
        return text

    monkeypatch.setattr(http.cookies, "_unquote", take)
    return given


@pytest.fixture
def accounts(tmp_path: Path) -> Accounts:
    file = tmp_path / "users.json"
    ada = UserRecord(role=access.AccountRole.READER, password=hash_password(PASSWORD))
    write_users(file, UsersDocument(users={"ada": ada}))
    return Accounts(UsersFile(file))


def as_python_reads_it(headers: Headers) -> str | None:
    return {name: one.value for name, one in SimpleCookie(headers["cookie"]).items()}.get(COOKIE)


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize(("method", "path"), [("GET", "/api/v1/about"), ("POST", "/api/v1/login"), ("GET", "/")])
async def test_no_cookie_of_a_stranger_is_unquoted(
    accounts: Accounts, unquoted: list[str], method: str, path: str, is_guarded: bool
) -> None:
    app = FastAPI()

    @app.api_route("/{anything:path}", methods=["GET", "POST"])
    async def answer(anything: str) -> str:
        return anything

    server: Any = AccessGuard(app, accounts) if is_guarded else app
    async with httpx.AsyncClient(transport=httpx.ASGITransport(server), base_url=SERVER) as client:
        await client.request(method, path, headers={"Cookie": BACKSLASHES, "Origin": SERVER})
    assert bool(unquoted) is not is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
def test_who_sends_a_cookie_is_found_without_unquoting(
    accounts: Accounts, unquoted: list[str], monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(access, "_cookie_of", as_python_reads_it)
    assert accounts.caller_of(Headers({"cookie": BACKSLASHES})) is None
    assert bool(unquoted) is not is_guarded


async def test_a_login_is_recognised_among_other_cookies(accounts: Accounts) -> None:
    cookie = await accounts.login("ada", PASSWORD)
    for header in (f"{COOKIE}={cookie}", f'a=1; {COOKIE}={cookie};b="x y"', f"; {COOKIE} = {cookie} ;"):
        found = accounts.caller_of(Headers({"cookie": header}))
        assert found is not None and found.name == "ada", header
    for header in (f"{COOKIE}={cookie}; {COOKIE}=other", f"x{COOKIE}={cookie}", f"a={COOKIE}={cookie}", "", "=;;="):
        assert accounts.caller_of(Headers({"cookie": header})) is None, header
