"""The turns of a context and the window over them."""
