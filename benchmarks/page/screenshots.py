"""`make screenshots`: the pictures of README and guide, taken from the product over a run of the demo."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

import httpx2 as httpx
from tests.support.web.browser import FRONTEND, NODE

from benchmarks.page.from_demo import console, finished_demo
from benchmarks.support.processes import ROOT

IMAGES = ROOT / "docs/images"


async def take(folder: Path) -> None:
    """Write web-run.png and web-packet.png into docs/images."""
    command = await finished_demo(folder)
    async with console(folder, command) as link:
        address = urlsplit(link)
        site, token = f"{address.scheme}://{address.netloc}", address.fragment.removeprefix("token=")
        run = address.path.removeprefix("/runs/")
        packet = await _packet(site, token, run)
        await _shoot(site, token, f"web-run=/runs/{run}", f"web-packet=/packets/{packet}")


async def _packet(site: str, token: str, run: str) -> str:
    """Return the packet of the run that was refused."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{site}/api/v1", headers=headers) as client:
        refused = (await client.get("/packets", params={"run_id": run, "verdict": "refused"})).json()["items"]
    return f"{refused[0]['shard']}-{refused[0]['seq']}"


async def _shoot(site: str, token: str, *pages: str) -> None:
    settings = {"SCHEMES": "light dark", "WIDTHS": "1280", "FULL": "0"}
    with tempfile.TemporaryDirectory(prefix="apc-shots-") as shots:
        process = await asyncio.create_subprocess_exec(
            NODE,
            "tests/browser/screens.mjs",
            site,
            token,
            shots,
            *pages,
            cwd=FRONTEND,
            env={**os.environ, "PATH": f"{NODE.parent}:{os.environ['PATH']}", **settings},
        )
        if await process.wait() != 0:
            raise RuntimeError("the browser could not take the screenshots")
        for name, scheme in (("web-run", "light"), ("web-packet", "dark")):
            shutil.copyfile(f"{shots}/{name}-{scheme}-1280.png", IMAGES / f"{name}.png")


def main() -> int:
    """Take the screenshots; print where they are."""
    with tempfile.TemporaryDirectory(prefix="apc-screenshots-") as folder:
        asyncio.run(take(Path(folder)))
    for file in sorted(IMAGES.glob("web-*.png")):
        print(f"{file.relative_to(ROOT)}  {file.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
