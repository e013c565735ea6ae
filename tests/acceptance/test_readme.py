"""What the README shows, runs."""

import re
import subprocess
from pathlib import Path

from apc_agents import Agent, AgentTestClient
from apc_contracts import ClaimPayload, ExpectedImpact, FailureMode, IdeaPayload, PacketType

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/reviewer.py"


def example_of_the_readme() -> str:
    """Return the first block of Python in the README."""
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_make_setup_says_first_what_it_costs_as_the_readme_does() -> None:
    command = ["make", "--dry-run", "--always-make", "setup"]
    planned = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    cost = re.search(r"echo .*installing .* packages: (.*) \.\.\.", planned)
    assert cost is not None
    assert cost.start() < planned.index("pip install")
    assert f"It takes {cost.group(1)}." in (ROOT / "README.md").read_text()


def test_the_example_is_the_file_in_examples() -> None:
    code = EXAMPLE.read_text().split('"""', 2)[2].strip()

    assert example_of_the_readme().strip() == code


def test_the_example_is_short() -> None:
    lines = [line for line in example_of_the_readme().splitlines() if line.strip()]

    assert len(lines) <= 20


async def test_the_example_answers_an_idea() -> None:
    # Executed from its file, so that annotations resolve as in a user's own module.
    names: dict[str, object] = {"__name__": "readme_example"}
    exec(compile(example_of_the_readme(), "README.md", "exec"), names)
    agent = names["agent"]
    assert isinstance(agent, Agent)
    idea = IdeaPayload(
        method_id="ridge-1",
        intent="a regularised baseline",
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(FailureMode(id="collinear", description="columns repeat", mitigation="drop them"),),
    )

    async with AgentTestClient(agent) as client:
        reply = await client.send(idea, confidence=0.8)
        state = await client.state()

    assert reply is not None
    assert reply.packet_type is PacketType.CLAIM
    assert isinstance(reply.payload, ClaimPayload)
    assert reply.payload.confidence_post == 0.4
    assert state == {"reviewed": ["ridge-1"]}
