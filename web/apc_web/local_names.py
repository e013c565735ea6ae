"""The names by which a service that listens only on this machine may be addressed.

Apart from the server, so that the health pages of a worker need none of its libraries.
"""

import re
from ipaddress import ip_address

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/]+)(:[0-9]{1,5})?", re.IGNORECASE | re.ASCII)
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def is_loopback(host: str) -> bool:
    """Return whether a service on this host is reachable only from this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def name_of(host: str) -> str:
    """Return the name of a Host header without its port; nothing when it is not a name with a port or without one."""
    match = _HOST.fullmatch(host)
    return match[1].lower() if match else ""
