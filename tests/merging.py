"""Merge patches by their definition, read literally, and random ones to try it on."""

import copy
from typing import Any, Final

from hypothesis import strategies as st

SENTINEL: Final = "__ff_null__"

_values: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["x", SENTINEL]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", SENTINEL]), inner, max_size=3)
    ),
    max_leaves=8,
)
patches: Final = st.dictionaries(st.sampled_from(["a", "b", "c", SENTINEL]), _values, max_size=3)


def patched(document: Any, patch: Any) -> Any:
    """The document after the patch: first merged, then every sentinel in it a null."""
    return _without_sentinels(_merged(document, patch))


def _merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = copy.deepcopy(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _without_sentinels(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_sentinels(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_sentinels(each) for each in value]
    return None if value == SENTINEL else value
