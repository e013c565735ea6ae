"""Same seed, same run: in one process and over RabbitMQ with a process for each role (docs/specification/agents.md
section 7).

Undisturbed: with every process killed once it is compared in test_run_supervised.
"""

from collections import Counter

import pytest
from tests.support.apc_command import ApcCommand, FinishedRun, read_summary, statements_of


@pytest.mark.faults
@pytest.mark.timeout(590)
def test_every_sender_says_the_same_over_both_transports(
    apc: ApcCommand, amqp_vhost_url: str, postgres_url: str, finished_run: FinishedRun
) -> None:
    servers = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    options = ("--generations", "13", "--budget-seconds", "500", "--out", "out")
    run = apc("automl", "run", *options, timeout_seconds=550, given=servers)
    assert run.returncode == 0, run.stderr[-3000:]

    verified = apc(
        "packet", "replay", "--run-id", read_summary(apc.folder / "out")["run_id"], "--verify", given=servers
    )
    assert verified.returncode == 0, verified.stderr

    here = statements_of(finished_run.apc, finished_run.summary["run_id"])
    there = statements_of(apc, read_summary(apc.folder / "out")["run_id"], servers)

    assert here - there == Counter()
    assert there - here == Counter()
