"""`apc config`: the settings in force."""

from apc_console.output.output import AsJson, print_rows


def config(as_json: AsJson = False) -> None:
    """Print every setting in force with its environment variable; secrets are hidden."""
    from apc_console.configuration import settings_in_force

    rows = [setting.row() for setting in settings_in_force()]
    print_rows(rows, title="Settings in force", as_json=as_json, empty="no settings")
