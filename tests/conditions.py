"""Random conditions over few names and keys, so that signals meet them often."""

from typing import Final

from hypothesis import strategies as st

from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    ByName,
    Count,
    Matcher,
    Node,
    Single,
    Wildcard,
)

KEYS: Final = ("a", "b", "c")
NAMES: Final = ("x", "y")

_keys: Final = st.sampled_from(KEYS)
_matchers: Final[st.SearchStrategy[Matcher]] = st.one_of(
    st.builds(ByName, st.sampled_from(NAMES)), st.builds(Wildcard)
)
_leaves: Final = st.one_of(
    st.builds(Single, _keys, _matchers),
    st.builds(
        Count,
        st.integers(1, 3),
        st.sampled_from(["DistinctWaitpoints", "DistinctSignals", "DistinctSources"]),
        st.lists(_keys, min_size=1, max_size=3).map(tuple),
        st.one_of(st.none(), _matchers),
    ),
)


def _composites(members: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    some = st.lists(members, min_size=1, max_size=3).map(tuple)
    return st.one_of(st.builds(AllOf, some), st.builds(AnyOf, some))


trees: Final[st.SearchStrategy[Node]] = st.recursive(_leaves, _composites, max_leaves=8)
