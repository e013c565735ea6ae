"""The OpenAPI document of the API: `python -m apc_web.openapi` writes `openapi.json`, for the page and for wheels."""

from pathlib import Path

import orjson

from apc_web.app import make_app

DOCUMENT = Path(__file__).with_name("openapi.json")


def openapi_bytes() -> bytes:
    """Return the OpenAPI 3.1 document of the API."""
    document = make_app(None).openapi()
    document["security"] = [{"bearer": []}]
    document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


if __name__ == "__main__":
    DOCUMENT.write_bytes(openapi_bytes())
