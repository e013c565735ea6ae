"""`apc config`: the settings in force."""

import os
import sys

from apc_console.output.output import AsJson, print_rows
from apc_console.output.terminal import echo


def config(as_json: AsJson = False) -> None:
    """Print every setting in force with its environment variable; secrets are hidden."""
    from apc_console.configuration import complaints, settings_in_force
    from apc_contracts.terminal_text import one_line

    rows = [setting.row() for setting in settings_in_force()]
    print_rows(rows, title="Settings in force", as_json=as_json, empty="no settings")
    for sentence in complaints(os.environ):
        echo(f"apc: {one_line(sentence)}", file=sys.stderr)
