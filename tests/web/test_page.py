"""The page in a real browser, over a log that a real gate judged and a real log writer stored."""

import pytest
from tests.support.web.browser import browse, require_page, served
from tests.web.conftest import TOKEN, WebBench

from apc_web.app import make_app
from apc_web.guard import AccessGuard


@pytest.mark.timeout(300)
async def test_a_person_reads_a_run_and_checks_a_proof_in_a_browser(told: WebBench) -> None:
    require_page()
    [refused] = (await told.get("/packets", session_id="s-1", verdict="refused", refusal_code="PHASE_MISMATCH"))[
        "items"
    ]
    key = (await told.get(f"/packets/{refused['packet_id']}/proof"))["key"]
    async with served(AccessGuard(make_app(told.services), TOKEN)) as url:
        named = f"{refused['shard']}-{refused['seq']}"
        await browse(
            "journey.mjs", {"url": url, "token": TOKEN, "run": refused["run_id"], "key": key, "refused": named}
        )
