"""The sockets that a service listens on, opened before it tells its address."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from apc_web.errors import InputUnusable

_BACKLOG = 2048


@contextmanager
def open_listeners(host: str, port: int, *, or_free_port: bool = False) -> Iterator[list[socket.socket]]:
    """Yield a listening socket for each address of a host; leaving the context closes them.

    Args:
        host: a name or an address.
        port: the port; 0 takes a free one.
        or_free_port: take a free port where another process listens on this one.

    Raises:
        InputUnusable: another process listens there, or the address is not one of this machine.
    """
    with ExitStack() as stack:
        try:
            listeners = _listeners(stack, host, port)
        except OSError as error:
            if not or_free_port:
                reason = str(error.strerror).partition(" (")[0]  # the rest repeats the address
                raise InputUnusable(f"--listen {host}:{port}: {reason}; name another port or address") from error
            listeners = _listeners(stack, host, 0)
        yield listeners


def _listeners(stack: ExitStack, host: str, port: int) -> list[socket.socket]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    addresses = dict.fromkeys((family, (str(address[0]), int(address[1]))) for family, *_, address in found)
    return [
        stack.enter_context(socket.create_server(address, family=family, backlog=_BACKLOG))
        for family, address in addresses
    ]
