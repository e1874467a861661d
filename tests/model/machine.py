"""The machine: who acts, how often, and in what mixture."""

from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.model.outsiders import Keepers, Operators, Schedulers, Submitters, Time
from tests.model.waiters import Waiters
from tests.model.world import Open
from tests.model.writers import Writers

WORKERS: Final = (
    "work",
    "work",
    "work",
    "claim",
    "act",
    "act",
    "act",
    "finish_and_claim",
    "hand_out",
    "wait_on_pending",
)
OTHERS: Final = (
    "submit",
    "submit",
    "submit_graph",
    "operate",
    "operate",
    "operate",
    "grant",
    "consume_a_grant",
    "take_by_name",
    "keep_house",
    "signal",
    "signal",
    "approve",
    "wait_otherwise",
)


class Model(Submitters, Waiters, Writers, Operators, Schedulers, Keepers, Time):
    """Few rules with many acts each: hypothesis leaves whole rules out of some runs, and a run
    without workers or without the others is still worth having."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        for act in ("submit", "submit", "submit_graph", "claim"):
            getattr(self, act)(data)

    @rule(acts=st.lists(st.sampled_from(WORKERS), min_size=1, max_size=3), data=st.data())
    def workers_act(self, acts: list[str], data: st.DataObject) -> None:
        for act in acts:
            getattr(self, act)(data)

    @rule(acts=st.lists(st.sampled_from(OTHERS), min_size=1, max_size=3), data=st.data())
    def others_act(self, acts: list[str], data: st.DataObject) -> None:
        for act in acts:
            getattr(self, act)(data)

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        self.pass_time(data)


def model_of(open_store: Open) -> type[Model]:
    """The machine for one store; hypothesis makes one anew for every run."""

    class ModelOfOneStore(Model):
        def __init__(self) -> None:
            super().__init__(open_store)

    return ModelOfOneStore
