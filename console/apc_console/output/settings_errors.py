"""Turn an unusable setting into one sentence."""

from pydantic import ValidationError

from apc_bus.settings import all_settings, variable_of

_CLASSES = {kind.__name__: kind for kind in all_settings()}


def sentence_of(error: ValidationError) -> str:
    """Name the variable and what is wrong with its value. Re-raises errors that are not about settings."""
    kind = _CLASSES.get(error.title)
    if kind is None:
        raise error
    first = error.errors(include_url=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = variable_of(kind, ".".join(map(str, first["loc"])))
    return f"{name} {message}" if message.startswith("must ") else f"{name}: {message}"
