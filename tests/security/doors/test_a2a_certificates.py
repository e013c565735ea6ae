"""Certificates of clients at the door: who has none of its authority, or one of somebody else, is nobody."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from tests.doors.a2a.conftest import A2AClient, Behind, Running, behind, desk, make_tokens, place_of, state_of
from tests.integration.privilege.certificates import Certificates
from tests.security.doors.test_a2a_access import status_of, stored

from apc_a2a.access import CallersFile
from apc_contracts.errors import InputUnusable

__all__ = ["behind"]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates.make(tmp_path)


def settings(certificates: Certificates) -> dict[str, Path]:
    """Those of a door with TLS, which takes certificates of our authority."""
    server = certificates.issue("server", "127.0.0.1")
    return {"a2a_tls_cert": server, "a2a_tls_key": server, "a2a_client_ca_file": certificates.authority}


def with_name(authority: trustme.CA, name: str, file: Path) -> Path:
    """A certificate with a common name."""
    authority.issue_cert("client.example", common_name=name).private_key_and_cert_chain_pem.write_to_path(file)
    return file


@asynccontextmanager
async def connected(
    running: Running, certificates: Certificates, shown: Path | None = None, token: str | None = None
) -> AsyncIterator[A2AClient]:
    """A client that shows a certificate, sends a token, or neither."""
    context = ssl.create_default_context(cafile=str(certificates.authority))
    if shown is not None:
        context.load_cert_chain(shown)
    headers = {"A2A-Version": "1.0", **({"Authorization": f"Bearer {token}"} if token else {})}
    async with httpx.AsyncClient(base_url=running.door.url, headers=headers, verify=context, timeout=30) as http:
        yield A2AClient(http)


async def test_a_certificate_names_its_caller_and_nobody_else(
    behind: Behind, certificates: Certificates, tmp_path: Path
) -> None:
    ours = certificates.ours
    async with behind(desk(), **settings(certificates)) as running:
        tokens = make_tokens(running.place.callers_file)
        async with connected(running, certificates, with_name(ours, "ida", tmp_path / "ida.pem")) as ida:
            asked = await ida.send({"data": {"text": "a boat", "amount": 700}})
            assert state_of(asked) == "INPUT_REQUIRED" and (await ida.call("ListTasks"))["totalSize"] == 1
            card = (await ida.http.get("/.well-known/agent-card.json")).json()
            assert (
                sorted(card["securitySchemes"]) == ["bearer", "certificate"] and len(card["securityRequirements"]) == 2
            )
        async with connected(running, certificates, token=tokens["ida"]) as by_token:
            assert state_of(await by_token.task(asked["id"])) == "INPUT_REQUIRED", "a token alone is enough, as before"
        async with connected(running, certificates, tmp_path / "ida.pem", tokens["ida"]) as both:
            assert state_of(await both.task(asked["id"])) == "INPUT_REQUIRED"
        async with connected(running, certificates, with_name(ours, "bob", tmp_path / "bob.pem")) as bob:
            assert (await bob.call("ListTasks"))["totalSize"] == 0
        before = await stored(running)
        for name in ("mallory", "client-ida", "IDA", "ida ", "ida\u00e9", "*"):
            async with connected(running, certificates, with_name(ours, name, tmp_path / "other.pem")) as other:
                assert await status_of(other) == 401, name
        async with connected(running, certificates, certificates.issue("nameless", "ida")) as nameless:
            assert await status_of(nameless) == 401, "a host is no caller"
        async with connected(running, certificates) as nobody:
            assert await status_of(nobody) == 401
            for header in ("X-Client-Cert", "X-SSL-Client-S-DN-CN", "X-Forwarded-Client-Cert", "apc_client_names"):
                assert await status_of(nobody, **{header: "ida"}) == 401, header
        assert await stored(running) == before


async def test_a_token_and_a_certificate_of_two_callers_are_nobody(
    behind: Behind, certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has stolen a token does not use it behind another certificate, and a bad token is not made good by one."""
    ida = with_name(certificates.ours, "ida", tmp_path / "ida.pem")
    async with behind(desk(), **settings(certificates)) as running:
        tokens = make_tokens(running.place.callers_file)
        async with connected(running, certificates, token=tokens["bob"]) as bob:
            assert await status_of(bob) == 200, "the token is good"
        for token in (tokens["bob"], "no-token"):
            async with connected(running, certificates, ida, token) as mixed:
                assert await status_of(mixed) == 401
        with monkeypatch.context() as unguarded:
            unguarded.setattr(CallersFile, "name_of", lambda self, token: "ida")
            async with connected(running, certificates, ida, "no-token") as mixed:
                assert await status_of(mixed) == 200


async def test_a_certificate_of_another_authority_or_of_yesterday_ends_the_connection(
    behind: Behind, certificates: Certificates, tmp_path: Path
) -> None:
    """The first is taken where the door trusts that authority: nothing else keeps it out."""
    foreign = with_name(certificates.another, "ida", tmp_path / "foreign.pem")
    trusting = settings(certificates)
    async with behind(desk(), **trusting) as running:
        for shown in (foreign, certificates.issue("old", "ida", is_expired=True)):
            async with connected(running, certificates, shown) as client:
                with pytest.raises(httpx.TransportError):
                    await status_of(client)
    async with behind(desk(), **trusting | {"a2a_client_ca_file": certificates.other_authority}) as running:
        async with connected(running, certificates, foreign) as client:
            assert await status_of(client) == 200


def test_certificates_need_a_door_that_speaks_tls(certificates: Certificates, tmp_path: Path) -> None:
    """Behind a proxy the door would see none, and a header that names one could be anybody's."""
    with (
        pytest.raises(InputUnusable, match="APC_A2A_CLIENT_CA_FILE needs APC_A2A_TLS_CERT"),
        place_of(tmp_path, a2a_client_ca_file=certificates.authority),
    ):
        pass
