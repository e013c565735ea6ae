"""The web console: who may reach it, and who may log in."""

from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from apc_bus.settings.setting_sources import ApcSettings


class WebSettings(ApcSettings):
    """Settings of `apc ui` and `apc serve web`."""

    web_users_file: Path | None = None
    """The accounts, which `apc user` writes, mode 0600; none = a token for each start, on loopback alone."""
    web_hosts: tuple[str, ...] = ()
    """JSON list of the names by which browsers reach the server, such as `["console.example.com"]`; on loopback those
    of this machine are added."""
    web_tls_cert: Path | None = None
    """Certificate chain (PEM) with which the server itself speaks TLS; goes with APC_WEB_TLS_KEY."""
    web_tls_key: Path | None = None
    """Private key (PEM) of that certificate."""
    web_trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """JSON list of addresses or networks of proxies that end TLS, such as `["10.0.0.7/32"]`: nobody else is answered,
    and only what came to them by https."""
    web_operator: str | None = None
    """The person with the right `operate` in whose name a server without accounts acts; `apc up` registers it. None =
    `operator`, or the first agent of the broker user with the right."""
