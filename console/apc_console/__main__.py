"""`python -m apc_console` is `apc`: how the supervisor starts its processes, whatever the PATH."""

from apc_console.commands import main

main()
