"""Starts a session of the team in a running system with the JSON on the standard input, and prints the result."""

import asyncio
import sys

from review import PullRequest, Review, team

import apc_client


async def main() -> None:
    request = PullRequest.model_validate_json(sys.stdin.read())
    async with apc_client.connect() as bus:
        session = await bus.start(team, request, key=f"pull-request-{request.number}")
        result = await session.result(timeout=60)
    assert isinstance(result, Review)
    print(result.model_dump_json(indent=2))


asyncio.run(main())
