"""The console: the `apc` command, and the wiring of the whole system in one process or in many.

It shows and operates; it holds no rules of its own. Every command ends with a clear line: exit 0 when it did what was
asked, 2 for bad input or a service that is away, 3 when a run found nothing that passed the gate.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
