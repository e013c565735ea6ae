"""Plugin for the conformance kit, which has no option for a login: its clients send the token of A2A_TOKEN."""

import os
from typing import Any

import httpx

_made = httpx.Client.__init__


def _with_token(client: httpx.Client, *arguments: Any, **options: Any) -> None:
    _made(client, *arguments, **options)
    client.headers["Authorization"] = f"Bearer {os.environ['A2A_TOKEN']}"


setattr(httpx.Client, "__init__", _with_token)  # noqa: B010
