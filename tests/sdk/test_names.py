"""What a program may import."""

import flowfabric


def test_the_public_names_are_all_there_and_sorted() -> None:
    assert sorted(flowfabric.__all__) == flowfabric.__all__
    assert all(hasattr(flowfabric, name) for name in flowfabric.__all__)
    assert flowfabric.__version__
