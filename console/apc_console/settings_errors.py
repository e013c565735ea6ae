"""A setting that cannot be used, as one sentence."""

from pydantic import ValidationError

PREFIXES = {"AutomlSettings": "APC_AUTOML_"}


def sentence_of(error: ValidationError) -> str:
    """Name the variable and what is wrong with its value. Raises the error again when it is not about settings."""
    if not error.title.endswith("Settings"):
        raise error
    first = error.errors(include_url=False, include_input=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return message
    name = ".".join(map(str, first["loc"])).upper()
    return f"{PREFIXES.get(error.title, 'APC_')}{name}: {message}"
