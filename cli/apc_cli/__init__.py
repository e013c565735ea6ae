"""The console: the `apc` command, which also runs the whole system in one process or in many.

It shows and operates; it holds no rules. Every command ends with a clear line: exit 0 when it did what was asked, 2 for
bad input or an unavailable service, 3 when a run found nothing that passed the gate.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
