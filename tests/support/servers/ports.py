"""Ports for servers that tests start later."""

import random
import socket
from contextlib import ExitStack

_BELOW_CONNECTIONS = range(10_000, 32_000)
"""Connections get ports from 32,768 on (Linux) or 49,152 (macOS), also before the server has started."""


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nobody listens."""
    ports: list[int] = []
    with ExitStack() as stack:
        while len(ports) < count:
            port = random.SystemRandom().choice(_BELOW_CONNECTIONS)  # the generator of the tests may be seeded
            try:
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            ports.append(port)
    return ports
