"""The shape of the product: few and whole files, short headers and short chains of imports (`make house` prints it)."""

from tests.support.house import measure

MOST_MODULES = 520
LARGEST_HEADER_SHARE = 0.11
SHORTEST_MEDIAN, LONGEST_MEDIAN = 150, 250
LONGEST_CHAIN = 15
UNTOUCHED = frozenset({"apps/apc_automl/data/files"})
"""Small folders of the application."""


def test_a_subject_is_one_file_and_a_folder_holds_several() -> None:
    house = measure()
    assert len(house.files) <= MOST_MODULES
    assert SHORTEST_MEDIAN <= house.median_lines <= LONGEST_MEDIAN
    assert house.header_share <= LARGEST_HEADER_SHARE
    assert set(house.small_folders) <= UNTOUCHED
    assert house.circles == ()


def test_no_chain_of_imports_is_long() -> None:
    chains = {package: chain for package, chain in measure().chains.items() if package != "apc_automl"}
    assert {package: chain for package, chain in chains.items() if len(chain) > LONGEST_CHAIN} == {}
