"""What an application may use of the command line: nothing else of this package is promised to it.

Each name is imported when it is used, since every `apc` command loads the commands of applications.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apc_cli.connections import open_log as open_log
    from apc_cli.errors import LogDiffers as LogDiffers
    from apc_cli.output.files import write_bytes as write_bytes
    from apc_cli.output.output import AsJson as AsJson
    from apc_cli.output.output import WithUi as WithUi
    from apc_cli.output.output import print_json as print_json
    from apc_cli.output.output import print_rows as print_rows
    from apc_cli.output.output import program as program
    from apc_cli.output.output import to_json as to_json
    from apc_cli.output.safe_console import SafeConsole as SafeConsole
    from apc_cli.output.terminal import echo as echo
    from apc_cli.system.running import run_quietly as run_quietly
    from apc_cli.system.running import stop_on_signals as stop_on_signals
    from apc_cli.system.supervisor import AgentProcess as AgentProcess
    from apc_cli.system.supervisor import run_supervised as run_supervised
    from apc_cli.system.system import System as System
    from apc_cli.system.system import has_broker as has_broker
    from apc_cli.system.up import ConsoleBeside as ConsoleBeside
    from apc_cli.system.up import check_console as check_console
    from apc_cli.system.up import console_beside as console_beside

NAMES = {
    name: f"apc_cli.{module}"
    for module, names in (
        ("connections", "open_log"),
        ("errors", "LogDiffers"),
        ("output.files", "write_bytes"),
        ("output.output", "AsJson WithUi print_json print_rows program to_json"),
        ("output.safe_console", "SafeConsole"),
        ("output.terminal", "echo"),
        ("system.running", "run_quietly stop_on_signals"),
        ("system.supervisor", "AgentProcess run_supervised"),
        ("system.system", "System has_broker"),
        ("system.up", "ConsoleBeside check_console console_beside"),
    )
    for name in names.split()
}
"""Name -> the module that defines it."""


if not TYPE_CHECKING:  # so that a type checker refuses every other name

    def __getattr__(name: str) -> Any:
        if name not in NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(NAMES[name]), name)
