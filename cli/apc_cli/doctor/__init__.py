"""`apc doctor`: checks of everything the bus needs, each finding with its fix."""

from apc_cli.doctor.examination import examine
from apc_cli.doctor.finding import Finding, Status

__all__ = ["Finding", "Status", "examine"]
