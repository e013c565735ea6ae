"""Who may reach the web console, and who asks: a token on loopback, or accounts over TLS."""

from dataclasses import dataclass

from starlette.types import ASGIApp

from apc_bus.settings import WebSettings
from apc_console.errors import InputUnusable
from apc_web.access import Accounts, UsersFile, make_token, read_users
from apc_web.guard import AccessGuard, BehindProxies
from apc_web.http import TlsFiles, is_loopback, listen_address


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a server listens, and whom it answers."""

    host: str
    port: int
    accounts: Accounts | None
    token: str
    """What the page sends where there are no accounts."""
    hosts: frozenset[str]
    tls: TlsFiles | None
    settings: WebSettings

    @property
    def scheme(self) -> str:
        """Return how the server itself speaks."""
        return "http" if self.tls is None else "https"

    def guarded(self, app: ASGIApp) -> ASGIApp:
        """Return the application behind its guards."""
        guarded = AccessGuard(app, self.accounts or self.token)
        proxies = self.settings.web_trusted_proxies
        return BehindProxies(guarded, proxies) if proxies else guarded


def reach_of(listen: str, settings: WebSettings) -> Reach:
    """Return where to listen and whom to answer.

    Raises:
        InputUnusable: listen is no HOST:PORT; accounts without TLS; others could reach a server without accounts, or
    one whose names are not set.
    """
    host, port = listen_address(listen)
    users, tls = settings.web_users_file, _tls(settings)
    if users is None and not is_loopback(host):
        raise InputUnusable(
            f"--listen {listen}: others could reach it, and it has no accounts: set APC_WEB_USERS_FILE, or listen on "
            "127.0.0.1 and use `ssh -L` from another machine"
        )
    if users is not None and tls is None and not settings.web_trusted_proxies:
        raise InputUnusable(
            "passwords need TLS: set APC_WEB_TLS_CERT and APC_WEB_TLS_KEY, or APC_WEB_TRUSTED_PROXIES when a proxy "
            "ends TLS in front of this server"
        )
    if not is_loopback(host) and not settings.web_hosts:
        raise InputUnusable(f"--listen {listen}: set APC_WEB_HOSTS to the names by which browsers reach it")
    if users is not None:
        read_users(users)
    accounts = None if users is None else Accounts(UsersFile(users))
    hosts = frozenset(name.lower() for name in settings.web_hosts)
    return Reach(host, port, accounts, make_token(), hosts, tls, settings)


def _tls(settings: WebSettings) -> TlsFiles | None:
    certificate, key = settings.web_tls_cert, settings.web_tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise InputUnusable("APC_WEB_TLS_CERT and APC_WEB_TLS_KEY go together: set both")
    for file in (certificate, key):
        if not file.is_file():
            raise InputUnusable(f"{file}: there is no such file")
    return TlsFiles(certificate, key)
