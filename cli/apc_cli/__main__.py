"""`python -m apc_cli` is `apc`: how the supervisor starts its processes, whatever the PATH."""

from apc_cli.commands import main

main()
