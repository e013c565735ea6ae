"""The session against a second, plain reading of the rules, under repeats, reorderings, sleepers and crashes."""

import copy
from datetime import timedelta

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from apc_contracts import IdeaPayload, SignalPayload, load_contract
from apc_contracts.judging.verdict import VerdictKind
from apc_contracts.payloads.by_type import DecisionPayload, ExpectedImpact
from apc_contracts.payloads.session_signals import Budgets
from apc_contracts.vocabulary import CommitmentLevel, Signal

from ..conftest import Simulation
from ..path.way import brief, evaluation, lineage, model, transfer
from .reference import Reference
from .reference_rules import GENERATION_STATES, PHASE, SWARMS
from .two_runs import Disturbed, TwoRuns

CONTRACT = load_contract()
AGENTS = st.sampled_from(["librarian", "red-1", "blue-1", "sentinel", "judge"])
BUILDERS = st.sampled_from(["red-1", "blue-1"])
OUTCOMES = st.sampled_from([0.0, 0.3, 0.5, 0.7, 0.9])
GENERATION_DEADLINE, STATE_DEADLINE = 10.0, 100.0


class Sessions(TwoRuns):
    """Two runs of one session, one of them disturbed, and what the rules say of both."""

    @initialize(
        limit=st.sampled_from([0, 1, 2, 12]),
        max_rounds=st.sampled_from([1, 2]),
        packets=st.sampled_from([None, 12, 40]),
        lead=st.sampled_from([0, 0, 0, 13]),
    )
    def open(self, limit: int, max_rounds: int, packets: int | None, lead: int) -> None:
        self.disturbed = Disturbed(CONTRACT)
        self.runs = [Simulation(CONTRACT), self.disturbed]
        self.count = 0
        self.said = []
        self.reference = Reference(limit, max_rounds, packets or 1e9, STATE_DEADLINE, GENERATION_DEADLINE)
        self.reference.due["state"] = STATE_DEADLINE
        start = None
        for run in self.runs:
            start = run.start(
                packet_id=start.packet_id if start else None,
                generation_limit=limit,
                max_rounds=max_rounds,
                budgets=Budgets(packets=packets),
                generation_deadline_ms=1000 * int(GENERATION_DEADLINE),
                state_deadline_ms=1000 * int(STATE_DEADLINE),
            )
        self.handle()
        self.carry_on_now((0.5, 0.3), lead)

    # What carries a session on.

    @rule(swarm=st.sampled_from(["red", "blue"]), shared=st.booleans())
    def dispatch(self, swarm: str, shared: bool) -> None:
        self.dispatch_brief(swarm, shared)

    def dispatch_brief(self, swarm: str, shared: bool) -> None:
        keys = frozenset({"common", "same"} if shared else {f"{swarm}-a", f"{swarm}-b"})
        said = self.speak("librarian", "TASK_IR", about=swarm, keys=keys)
        self.send(said, brief(), SWARMS[swarm], keys=tuple(sorted(keys)))

    @rule(sender=BUILDERS)
    def get_ready(self, sender: str) -> None:
        self.get_ready_now(sender)

    def get_ready_now(self, sender: str) -> None:
        if self.is_awake(sender):
            self.send(self.speak(sender, "SIGNAL", signal="SYNC"), SignalPayload(signal=Signal.SYNC))

    @rule(sender=BUILDERS, outcome=OUTCOMES, older=st.sampled_from([0, 0, 0, 1, -1]))
    def evaluate(self, sender: str, outcome: float, older: int) -> None:
        self.evaluate_now(sender, outcome, older)

    def evaluate_now(self, sender: str, outcome: float, older: int) -> None:
        if self.is_awake(sender):
            generation = max(0, self.reference.generation - older)
            said = self.speak(sender, "EVAL", outcome=outcome, generation=generation)
            self.send(said, evaluation(outcome), "sentinel", keys=self.fresh())

    @rule(sender=BUILDERS)
    def build(self, sender: str) -> None:
        self.build_now(sender)

    def build_now(self, sender: str) -> None:
        if not self.is_awake(sender):
            return
        artifact = self.send(self.speak(sender, "ARTIFACT"), model(), "sentinel", keys=self.fresh())
        if self.reference.state == "EXECUTION" and self.reference.is_winner(sender):
            said = self.speak(sender, "EVAL", outcome=0.8, about="winner")
            self.send(said, evaluation(0.8), "sentinel", parent=artifact, keys=self.fresh())

    @precondition(lambda self: self.reference.state == "VALIDATION")
    @rule(sender=AGENTS, passes=st.booleans())
    def validate(self, sender: str, passes: bool) -> None:
        self.validate_now(sender, passes)

    def validate_now(self, sender: str, passes: bool) -> None:
        if self.is_awake(sender):
            outcome = 0.8 if passes else 0.2
            artifact = self.clean.document.round_state.execution.artifact
            said = self.speak(sender, "EVAL", outcome=outcome, about="winner")
            self.send(said, evaluation(outcome), "librarian", parent=artifact, keys=self.fresh())

    @precondition(lambda self: self.reference.state == "ARBITRATION")
    @rule(sender=AGENTS)
    def veto(self, sender: str) -> None:
        if self.is_awake(sender):
            said = self.speak(sender, "SIGNAL", signal="VETO", about="arbitration")
            arbitration = self.clean.document.round_state.arbitration.packet_id
            self.send(said, SignalPayload(signal=Signal.VETO), parent=arbitration)

    @precondition(lambda self: self.reference.state == "ARBITRATION" and not self.reference.has_veto)
    @rule(sender=AGENTS)
    def decide(self, sender: str) -> None:
        if self.is_awake(sender):
            payload = DecisionPayload(
                decision_id="d",
                recommendation="go",
                priority_distribution={},
                next_actions=(),
                commitment_level=CommitmentLevel.APPROVED,
            )
            arbitration = self.clean.document.round_state.arbitration.packet_id
            said = self.speak(sender, "DECISION", about="arbitration")
            self.send(said, payload, parent=arbitration, keys=self.fresh())

    @rule(outcomes=st.tuples(OUTCOMES, OUTCOMES), times=st.integers(1, 6))
    def carry_on(self, outcomes: tuple[float, float], times: int) -> None:
        """What the reference swarm would do now, some steps of it."""
        self.carry_on_now(outcomes, times)

    def carry_on_now(self, outcomes: tuple[float, float], times: int) -> None:
        for _ in range(times):
            match self.reference.state:
                case "SESSION_OPEN":
                    for swarm in SWARMS:
                        self.dispatch_brief(swarm, shared=False)
                case "DIFFERENTIATED_RESEARCH":
                    for sender in SWARMS.values():
                        self.get_ready_now(sender)
                case "ARBITRATION":
                    self.wait_for(3)
                case "EXECUTION":
                    for sender in SWARMS.values():
                        self.build_now(sender)
                case "VALIDATION":
                    self.validate_now("sentinel", outcomes[0] >= 0.5)
                case "CLOSED" | "HALTED":
                    return
                case _:
                    for sender, outcome in zip(SWARMS.values(), outcomes, strict=True):
                        self.evaluate_now(sender, outcome, 0)

    @rule(ahead=st.sampled_from([-1, 0, 0]))
    def offer(self, ahead: int) -> None:
        """A TRANSFER waits for its barrier, or is refused."""
        if self.is_awake("red-1"):
            generation = max(0, self.reference.generation + ahead)
            said = self.speak("red-1", "TRANSFER", generation=generation)
            self.send(said, transfer(0.9, 0.1), "blue-1", lineage=lineage(), keys=self.fresh())

    # What does not.

    @rule(sender=AGENTS, phase=st.sampled_from(sorted(set(PHASE.values()))), ahead=st.sampled_from([0, 0, 1]))
    def have_an_idea(self, sender: str, phase: str, ahead: int) -> None:
        if self.is_awake(sender):
            payload = IdeaPayload(
                method_id=self.fresh()[0],
                intent="i",
                assumptions=(),
                required_capabilities=(),
                expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
                failure_modes=(),
            )
            said = self.speak(sender, "IDEA", phase=phase, generation=self.reference.generation + ahead)
            self.send(said, payload, "sentinel", keys=self.fresh())

    @rule(sender=AGENTS, signal=st.sampled_from([Signal.PAUSE, Signal.RESUME, Signal.QUERY]))
    def signal(self, sender: str, signal: Signal) -> None:
        if self.is_awake(sender):
            self.send(self.speak(sender, "SIGNAL", signal=signal.value), SignalPayload(signal=signal))

    @rule(sender=st.sampled_from(["red-1", "sentinel", "red-1", "sentinel", "red-1", "librarian"]))
    def stop(self, sender: str) -> None:
        if self.is_awake(sender):
            self.send(self.speak(sender, "SIGNAL", signal="STOP"), SignalPayload(signal=Signal.STOP))

    # What disturbs it.

    @rule(which=st.integers(0, 5))
    def repeat(self, which: int) -> None:
        """The same packet once more changes nothing, whenever it comes."""
        if which < len(self.said):
            packet, _ = self.said[-1 - which]
            before = [copy.deepcopy(run.session.document) for run in self.runs]
            if self.clean.identity(packet.packet_id) is not None:
                assert self.runs[1].take(packet).kind is VerdictKind.REPEAT
            assert [run.session.document for run in self.runs] == before

    @rule(times=st.integers(1, 3))
    def crash(self, times: int) -> None:
        """The next inputs of the disturbed run are judged, lost and judged again."""
        self.disturbed.crashes = times

    @rule(sender=BUILDERS)
    def fall_asleep(self, sender: str) -> None:
        self.reference.asleep.add(sender)

    @rule(sender=BUILDERS)
    def wake_up(self, sender: str) -> None:
        if self.is_awake(sender):
            return
        self.reference.wake(sender)
        said = self.speak(sender, "SIGNAL", signal="QUERY")
        self.send(said, SignalPayload(signal=Signal.QUERY))
        self.reference.handled(sender, self.now)

    @rule(sender=BUILDERS, deadlines=st.integers(1, 4), outcome=OUTCOMES)
    def sleep_through(self, sender: str, deadlines: int, outcome: float) -> None:
        """One builder misses some deadlines while the other goes on."""
        self.fall_asleep(sender)
        for _ in range(deadlines):
            for other in SWARMS.values():
                if self.is_awake(other) and self.reference.state in GENERATION_STATES:
                    self.evaluate_now(other, outcome, 0)
            self.wait_for(11)

    @rule(seconds=st.sampled_from([1, 3, 11, 40]))
    def wait(self, seconds: int) -> None:
        self.wait_for(seconds)

    def wait_for(self, seconds: int) -> None:
        self.reference.pass_time(self.now + seconds)
        for run in self.runs:
            run.pass_time(seconds=seconds)
        self.handle()

    # What always holds.

    @invariant()
    def the_session_stands_where_the_rules_say(self) -> None:
        if not hasattr(self, "runs"):
            return
        for run in self.runs:
            got = (run.session.state, run.session.round, run.session.generation, run.session.is_paused)
            reference = self.reference
            REACHED.add(reference.state)
            assert got == (
                reference.state,
                reference.round,
                reference.generation,
                reference.paused_at is not None,
            )

    @invariant()
    def the_budget_holds(self) -> None:
        if hasattr(self, "runs") and (cap := self.clean.document.budgets.get("packets")):
            assert self.clean.document.spent.get("packets", 0.0) <= cap

    @invariant()
    def both_runs_are_in_the_same_state(self) -> None:
        if hasattr(self, "runs"):
            clean, disturbed = (run.session for run in self.runs)
            assert clean.document == disturbed.document
            assert clean.outstanding == disturbed.outstanding

    def teardown(self) -> None:
        """Left alone, every session ends."""
        if not hasattr(self, "runs"):
            return
        for run in self.runs:
            if run.session.is_paused:
                run.send("librarian", SignalPayload(signal=Signal.RESUME))
            run.pass_time(seconds=timedelta(seconds=30 * STATE_DEADLINE).total_seconds())
            assert run.session.state in ("CLOSED", "HALTED")
            assert not run.session.held and not run.session.document.deadlines


REACHED: set[str] = set()


@pytest.mark.long
@pytest.mark.parametrize("examples", [140, pytest.param(2000, marks=[pytest.mark.faults, pytest.mark.timeout(900)])])
def test_the_session_is_what_the_rules_say(examples: int) -> None:
    # Shrinking takes longer than reading the steps of a failure.
    phases = (Phase.explicit, Phase.generate)
    run_state_machine_as_test(
        Sessions,
        settings=settings(
            max_examples=examples, stateful_step_count=40, deadline=None, phases=phases, derandomize=True
        ),
    )
    passed_through = {"CONTROLLED_CONVERGENCE", "PROMOTION"}
    assert set(PHASE) - passed_through | {"HALTED"} <= REACHED
