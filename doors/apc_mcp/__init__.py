"""The log for assistants: an MCP server over the queries and the acts of the web console.

It only reads unless acts are switched on. What agents and outsiders wrote is marked as data in every answer, and every
answer has a limit that it names.
"""

from apc_mcp.door import Door
from apc_mcp.server import make_server

__all__ = ["Door", "make_server"]
