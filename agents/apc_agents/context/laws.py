"""Checks a window against the three laws of a comonad.

Source: docs/reference/conformance/context-engineering.md, appendix A.
"""

from apc_agents.context.window.comonad import Store
from apc_agents.context.window.window import ContextWindow


def verify_comonad_laws(window: ContextWindow) -> bool:
    """Return whether a window obeys the laws of the store comonad; True, or AssertionError that names the law.

    1. Left identity:  extract ∘ duplicate = id
    2. Right identity: fmap extract ∘ duplicate = id
    3. Associativity:  duplicate ∘ duplicate = fmap duplicate ∘ duplicate, compared window by window

    The third law looks at (n + 1)² windows.
    """
    snapshots = window.duplicate()
    here = snapshots[window.position]
    _holds(here.window == window and here.value == window.extract(), "left identity")
    direct = [window.seek(position).extract() for position in range(len(window) + 1)]
    _holds([snapshot.value for snapshot in snapshots] == direct, "right identity")
    views = window.views()
    outside_in, inside_out = views.duplicate(), views.map(ContextWindow.views)
    _holds(_nested(outside_in) == _nested(inside_out), "associativity")
    return True


def _nested(stores: Store[Store[ContextWindow]]) -> list[tuple[int, int, list[ContextWindow]]]:
    """Return both focuses and every window, at every outer position."""
    return [(stores.position, store.position, store.values()) for store in stores.values()]


def _holds(law: bool, name: str) -> None:
    # Raised, not asserted: the check must also work under `python -O`.
    if not law:
        raise AssertionError(f"the window breaks the {name} of a comonad")
