"""What a worker does first: nothing comes between work and its start, nor between its end and the
report of it."""

from flowfabric import FlowFabric
from flowfabric.errors import FlowFabricError

WORKED = ("claim", "run", "finish")


class Noting:
    def __init__(self) -> None:
        self.heard: list[str] = []

    def before(self, method: str) -> FlowFabricError | None:
        self.heard.append(method)
        return None

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        """Only the order counts."""


async def test_work_is_begun_and_reported_before_more_is_asked_for(fabric: FlowFabric) -> None:
    noting = Noting()
    fabric.layer(noting)

    @fabric.task()
    async def noted() -> None:
        noting.heard.append("run")

    async with fabric.worker():
        for _ in range(3):
            await noted.call()
    worked = [one for one in noting.heard if one in WORKED]
    assert worked[:9] == [*WORKED] * 3
