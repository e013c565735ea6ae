"""The shape of the product: few and whole files, short headers and short chains of imports (`make house` prints it)."""

from tests.support.house import measure

MOST_MODULES = 510
"""499, and subjects of their kind: the host of many agents (`apc_agents.running.host`), how it keeps them apart
(`isolation`), what a question may ask people for (`apc_contracts.answers`), tools that act once and their file
(`tool_effects`, `sqlite_effects`), what agents of other frameworks share (`apc_minds.joined`) and an adapter each, the
MCP server (`apc_mcp`) and the door of A2A (`apc_a2a`) with their commands, presence, what viewers of traces know agents
by (`apc_bus.gen_ai`), and what Parquet may take to decode (`apc_log.parquet_bounds`)."""
LARGEST_HEADER_SHARE = 0.11
SHORTEST_MEDIAN, LONGEST_MEDIAN = 150, 250
LONGEST_CHAIN = 15


def test_a_subject_is_one_file_and_a_folder_holds_several() -> None:
    house = measure()
    assert len(house.files) <= MOST_MODULES
    assert SHORTEST_MEDIAN <= house.median_lines <= LONGEST_MEDIAN
    assert house.header_share <= LARGEST_HEADER_SHARE
    assert set(house.small_folders) == set()
    assert house.circles == ()


def test_no_chain_of_imports_is_long() -> None:
    chains = {package: chain for package, chain in measure().chains.items() if package != "apc_automl"}
    assert {package: chain for package, chain in chains.items() if len(chain) > LONGEST_CHAIN} == {}
