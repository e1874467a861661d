"""The kit runs the tasks of a program's own fabric, and leaves the program as it found it."""

from pathlib import Path

import pytest

from flowfabric import ConfigError, Context, Data, FlowFabric, resource
from flowfabric.operations.execution_queries import Search
from flowfabric.testing import FabricOf, VirtualClock, crash_everywhere, open_kit


class Program:
    """A module with a fabric and tasks, as users write them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "app.db"
        self.fabric = fabric = FlowFabric(f"sqlite:///{self.file}", namespace="shop")
        self.sent: list[str] = []

        @fabric.task(lane="mail")
        async def send(ctx: Context, name: str) -> str:
            self.sent.append(name)
            return f"sent to {name}"

        @fabric.task(retries=1)
        async def remind(ctx: Context, name: str) -> str:
            await ctx.sleep("3d")
            decision = await ctx.approve(f"remind {name}?")
            await ctx.step("boss", self.tell_boss)
            return await ctx.call(send, name) if decision else "kept"

        self.send, self.remind = send, remind

    async def tell_boss(self) -> None:
        run = await self.fabric.submit("send", {"name": "the boss"}, lane="mail")
        await run.result()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


async def test_tasks_of_a_program_run_under_the_clock(
    program: Program, fabric_of: FabricOf, clock: VirtualClock
) -> None:
    kit = await fabric_of(program.fabric)
    run = await program.remind.submit("Ada")
    await clock.advance("3d")
    await kit.approve_next(by="bob")
    assert await run.result() == "sent to Ada"
    assert sorted(program.sent) == ["Ada", "the boss"]
    assert (await run.info()).namespace == "shop"
    assert await program.fabric.run(run.id).state() == "completed"
    await kit.assert_state(kit.run(run.id), "completed")
    assert not program.file.exists()


async def test_everything_of_the_fabric_reaches_the_kit(
    program: Program, fabric_of: FabricOf, clock: VirtualClock
) -> None:
    await fabric_of(program.fabric)
    fabric = program.fabric
    await fabric.budget("purse", hard={"coins": 1})
    await fabric.schedule("daily", program.send, ["Eve"], every="1d")
    assert (await fabric.admin.list_schedules("shop")).items
    await clock.advance("2d")
    assert program.sent[:2] == ["Eve", "Eve"]
    async with fabric, fabric.worker() as worker:
        assert worker.options.namespace == "shop"
        assert await program.send.call("Bob") == "sent to Bob"
    # The kit stays open when the program closes its fabric.
    assert await program.send.call("Cid") == "sent to Cid"
    assert not program.file.exists()


async def test_a_fabric_that_was_open_is_used_again(program: Program, clock: VirtualClock) -> None:
    async with program.fabric:
        before = await program.send.submit("Ada")
        async with open_kit(clock, app=program.fabric) as kit:

            @kit.task
            async def extra() -> int:
                return 1

            assert await extra.call() == 1
            assert await program.send.call("Bob") == "sent to Bob"
            assert (await kit.admin.search(Search(namespace="shop"))).items
        assert program.sent == ["Bob"]
        assert await before.state() == "waiting"
        found = await program.fabric.admin.search(Search(namespace="shop"))
        assert [one.execution_id for one in found.items] == [before.id]

        # What a test declares on the kit is not the program's.
        @program.fabric.task(name="extra")
        async def again() -> None: ...

        with pytest.raises(ConfigError, match="taken"):
            program.fabric.task(name="send")(again)


async def test_workers_of_the_kit_have_what_the_tasks_need(tmp_path: Path) -> None:
    fabric = FlowFabric(f"sqlite:///{tmp_path}/app.db")

    @resource
    def address() -> str:
        return "mail.example"

    @fabric.handler("render")
    async def render(host: Data[str]) -> str:
        return host

    async with open_kit(app=fabric, resources=[address], capabilities=["gpu"]):
        run = await fabric.submit("render", needs=["gpu"])
        assert await run.result(timeout="5s") == "mail.example"


async def test_tasks_of_a_program_may_die_anywhere(tmp_path: Path, fabric_of: FabricOf) -> None:
    fabric = FlowFabric(f"sqlite:///{tmp_path}/app.db")

    @fabric.task
    async def nap(ctx: Context, n: int) -> int:
        await ctx.sleep("1h")
        return await ctx.step("double", lambda: 2 * n)

    assert await crash_everywhere(await fabric_of(fabric), nap, 2) == 4


async def test_two_programs_share_the_clock(
    tmp_path: Path, fabric_of: FabricOf, clock: VirtualClock
) -> None:
    (tmp_path / "one").mkdir()
    programs = [Program(tmp_path / "one"), Program(tmp_path)]
    kits = [await fabric_of(one.fabric) for one in programs]
    runs = [await one.remind.submit("Ada") for one in programs]
    await clock.advance("3d")
    for kit in kits:
        await kit.approve_next()
    assert [await run.result() for run in runs] == ["sent to Ada"] * 2


async def test_schedules_beside_their_tasks_fire(
    tmp_path: Path, fabric_of: FabricOf, clock: VirtualClock
) -> None:
    fabric = FlowFabric(f"sqlite:///{tmp_path}/app.db")
    made: list[str] = []

    @fabric.repeated("nightly", args=["Oslo"], cron="@daily", jitter="1h")
    @fabric.task
    async def report(city: str) -> None:
        made.append(city)

    with pytest.raises(ConfigError, match="declared twice"):
        fabric.repeated("nightly", args=["x"], every="1d")(report)
    with pytest.raises(ConfigError):
        fabric.repeated("other", every="1d")(report)
    await fabric_of(fabric)
    await clock.advance("3d")
    assert made == ["Oslo"] * 3
