"""What comes in through the door passes the gate as everything else does: a rule of the team refuses a task."""

from pathlib import Path

from tests.doors.a2a.conftest import Behind, desk, state_of

from apc_agents import Team

RULES = """
name: shop
extends: task
rules:
  - name: small-orders
    for: a2a-order/1
    require: has(content.amount) && content.amount <= 500
    say: One order is of 500 at most.
    remedy: Send several orders.
"""


async def test_a_task_that_a_rule_refuses_is_rejected_with_code_place_and_remedy(
    behind: Behind, tmp_path: Path
) -> None:
    file, plain = tmp_path / "shop.yml", desk()
    file.write_text(RULES)
    team = Team("desk", agents=plain.agents, entry="clerk", input=plain.input, contract=str(file))
    async with behind(team) as running:
        await running.system.register_contract(file)
        assert state_of(await running.ida.send({"data": {"text": "apples", "amount": 3}})) == "COMPLETED"
        refused = await running.ida.send({"data": {"text": "a ship", "amount": 501}}, message_id="m-2")
        text, data = refused["status"]["message"]["parts"]
        assert state_of(refused) == "REJECTED" and text == {"text": "One order is of 500 at most."}
        assert data["data"] == {
            "code": "RULE_FAILED",
            "path": "payload",
            "message": "One order is of 500 at most.",
            "remedy": "Send several orders.",
        }
        assert state_of(await running.ida.task(refused["id"])) == "REJECTED", "the log says it"
