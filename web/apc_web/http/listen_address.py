"""Parse the listen address of a service."""

from apc_web.errors import InputUnusable


def listen_address(listen: str) -> tuple[str, int]:
    """Return (host, port) of HOST:PORT; an IPv6 host may be in brackets. Raises InputUnusable."""
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not (host and port.isdecimal() and int(port) < 1 << 16):
        raise InputUnusable(f"--listen {listen!r}: write HOST:PORT")
    return host, int(port)
