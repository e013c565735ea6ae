"""Clients of the live stream in one process: `python -m benchmarks.page.stream_clients HOST:PORT TOKEN COUNT`.

They read and count what comes, over plain sockets: their own work must not be what is measured.
"""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import Sequence

_CHUNK = 1 << 16


async def follow(address: str, token: str, opened: asyncio.Event, seen: Counter[str]) -> None:
    """Read one stream of everything until it is cancelled. Raises RuntimeError when it is refused or ends."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 22)
    request = f"GET /api/v1/stream HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(request.encode())
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(status.decode())
    await reader.readuntil(b"event: entries")
    opened.set()
    while chunk := await reader.read(_CHUNK):
        seen["bytes"] += len(chunk)
        seen["events"] += chunk.count(b"event: entries")
        seen["resets"] += chunk.count(b"event: reset")
    raise RuntimeError("the server ended a stream")


async def _all_of(events: Sequence[asyncio.Event]) -> None:
    for event in events:
        await event.wait()


async def main(address: str, token: str, count: int) -> None:
    """Open the streams, say `listening`, and on SIGTERM print what came."""
    seen: Counter[str] = Counter()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    opened = [asyncio.Event() for _ in range(count)]
    streams = [asyncio.create_task(follow(address, token, one, seen)) for one in opened]
    everyone = asyncio.create_task(_all_of(opened))
    await asyncio.wait([everyone, *streams], return_when=asyncio.FIRST_COMPLETED)
    if everyone.done():
        print("listening", flush=True)
        stopping = asyncio.create_task(_all_of([stop]))
        await asyncio.wait([stopping, *streams], return_when=asyncio.FIRST_COMPLETED)
    for stream in streams:
        if stream.done():
            stream.result()
        stream.cancel()
    print(f"events {seen['events']} resets {seen['resets']} bytes {seen['bytes']}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
