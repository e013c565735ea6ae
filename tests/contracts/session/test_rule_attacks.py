"""Attempts to get round the rules of a team, and rules by which a contract would stop its gate."""

from .test_team_rules import HEAD, contract_of, room


def rule(name: str, require: str, when: str = "true") -> str:
    """Return a rule for action/1, its expressions as blocks that need no quotes."""
    return f"  - name: {name}\n    for: action/1\n    when: |-\n      {when}\n    require: |-\n      {require}\n"


# What stops a gate.


def test_rules_that_are_too_deep_together_are_judged_one_by_one() -> None:
    """Each compiles alone, just below CEL's bound; joined they stand deeper."""
    deep = "(" * 31 + "true" + ")" * 31
    incident = room(contract_of(HEAD + rule("a", deep, deep)))
    incident.accept(incident.action())


def test_rules_that_are_too_long_together_are_judged_one_by_one() -> None:
    """CEL takes 100,000 characters at once."""
    long = f'"{"a" * 980}" != ""'
    incident = room(contract_of(HEAD + "".join(rule(f"r{index}", long, long) for index in range(64))))
    incident.accept(incident.action())
