"""The tree budget against a reference that keeps every coin in one purse."""

from dataclasses import dataclass, field
from math import ceil
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.session.test_budgets import CONTRACT, IDEA, TASKS, Tree

from apc_contracts.session.budgets import left_of
from apc_contracts.session.document import decode_document
from apc_contracts.wire.receipts import ReceiptKind

from .conftest import Simulation


def some_acts(random: Random) -> list[tuple[str, str, str, int]]:
    """Reservations, packets and ends of tasks, mostly on a tree that is already nested."""
    nested = [("give", "a", "task-1", 60), ("give", "b", "a", 30), ("give", "c", "b", 12), ("give", "d", "c", 5)]
    acts = nested[: random.randint(0, len(nested))]
    for _ in range(40):
        (act,) = random.choices(("give", "send", "done"), (3, 6, 2))
        acts.append((act, random.choice(TASKS), random.choice(TASKS), random.randint(0, 12)))
    return acts


@dataclass(eq=False)
class Purse:
    """The reference: purses within purses, each a pile of coins that are counted one by one."""

    packets: int
    tokens: int
    above: "Purse | None" = None
    below: list["Purse"] = field(default_factory=list)
    most: int = 0
    """That one delivery can draw: what was put in, of the outermost purse half of it."""

    def __post_init__(self) -> None:
        self.most = self.tokens if self.above else ceil(self.tokens / 2)

    def cut(self, amount: int) -> "Purse | None":
        if amount > self.packets or amount > self.tokens:
            return None
        self.packets -= amount
        self.tokens -= amount
        purse = Purse(amount, amount, self)
        self.below.append(purse)
        return purse

    def pay_tokens(self, amount: int) -> None:
        paid = min(amount, self.tokens) if self.above else amount
        self.tokens -= paid
        if self.above and amount > paid:
            self.above.pay_tokens(amount - paid)

    def pour_back(self) -> None:
        for purse in list(self.below):
            purse.pour_back()
        if self.above:
            self.above.packets += self.packets
            self.above.tokens += self.tokens
            self.packets = self.tokens = 0
            if self in self.above.below:
                self.above.below.remove(self)

    def all_packets(self) -> int:
        return self.packets + sum(purse.all_packets() for purse in self.below)


class Reference:
    """Which purse each task pays from."""

    def __init__(self, packets: int, tokens: int) -> None:
        self.root = Purse(packets, tokens)
        self.own: dict[str, Purse] = {}
        self.parent: dict[str, str] = {}

    def purse(self, task: str) -> Purse:
        while task not in self.own:
            if task not in self.parent:
                return self.root
            task = self.parent[task]
        return self.own[task]

    def give(self, task: str, under: str, amount: int) -> bool:
        giver = self.purse(under)
        if giver.packets < 1 or giver.tokens <= 0:
            return False
        giver.packets -= 1
        if task in self.own:
            return True
        # It hangs under the task that its first TASK_IR belonged to, if that one is in the tree.
        is_known = under in self.own or under in self.parent
        above = self.parent.get(task, under if is_known and under != task else None)
        purse = (self.purse(above) if above else self.root).cut(amount)
        if purse is None:
            giver.packets += 1
            return False
        self.own[task] = purse
        if above:
            self.parent[task] = above
        return True

    def send(self, task: str, tokens: int) -> bool:
        purse = self.purse(task)
        if purse.packets < 1 or purse.tokens <= 0:
            return False
        purse.packets -= 1
        purse.pay_tokens(min(tokens, purse.most))
        return True

    def done(self, task: str) -> bool:
        if task not in self.own:
            return self.send(task, 0)
        for name in [name for name in self.own if name == task or self.is_below(name, task)]:
            self.own.pop(name).pour_back()
        if task not in self.parent:
            for name in [name for name in self.parent if self.is_below(name, task)]:
                del self.parent[name]
        return True

    def is_below(self, name: str, top: str) -> bool:
        while name in self.parent:
            name = self.parent[name]
            if name == top:
                return True
        return False


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_no_tree_of_parts_loses_or_makes_a_coin(seed: int) -> None:
    random = Random(seed)
    packets, tokens = random.randint(1, 100), random.randint(1, 200)
    tree, reference = Tree(Simulation(CONTRACT), packets=packets, tokens=tokens), Reference(packets, tokens)
    largest = 0
    for act, task, under, amount in some_acts(random):
        if tree.simulation.opened is None or tree.simulation.opened.is_terminal:
            break
        if act == "give":
            refusal = tree.give(task, f"packets={amount}; tokens={amount}", under=under)
            is_accepted = reference.give(task, under, amount)
        elif act == "done":
            refusal, is_accepted = tree.done(task), reference.done(task)
        else:
            refusal, is_accepted = tree.send(task, IDEA), reference.send(task, amount)
            if refusal is None:
                tree.usage(ReceiptKind.OUTCOME, amount)
                largest = max(largest, amount)
        assert (refusal is None) == is_accepted, (act, task, under, amount, refusal)
        assert refusal is None or refusal.code == "BUDGET_EXHAUSTED"
        document = tree.document
        spent = document.spent
        assert spent.get("packets", 0) <= packets and spent.get("tokens", 0) < tokens + largest + 1
        assert spent.get("packets", 0) + reference.root.all_packets() == packets
        for name in TASKS:
            purse = reference.purse(name)
            assert tree.left(name) == {"packets": purse.packets, "tokens": purse.tokens}, name
        assert decode_document(document.encode()) == document
        if not document.task_budgets:
            assert left_of(document, "", "packets") == packets - spent.get("packets", 0)
