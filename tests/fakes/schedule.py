"""What random schedules of an engine loop have in common: its turns, and requests that give up."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.fakes.loop import LoopRig, Outcome


class LoopMachine(RuleBasedStateMachine):
    """A rig that a subclass makes, with the ids of the requests that were aborted."""

    rig: LoopRig | None = None
    aborted: set[str]

    def outcomes(self) -> list[Outcome]:
        return list(self.rig.outcomes.values())

    @rule(index=st.integers(0, 9))
    def abort(self, index: int) -> None:
        left = [o for o in self.outcomes() if o.last is None]
        if left:
            outcome = left[index % len(left)]
            self.aborted.add(outcome.request.id)
            self.rig.abort(outcome)

    @rule(num_turns=st.integers(1, 6), has_io=st.booleans())
    def turns(self, num_turns: int, has_io: bool) -> None:
        for _ in range(num_turns):
            self.rig.turn(has_io=has_io)
