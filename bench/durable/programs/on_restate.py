"""Restate: a service behind its server, called through the server's ingress."""

import asyncio
import json
import os
import sys
import uuid
from typing import Any

import restate

from bench.durable.programs.driving import CHILDREN, SLOW_S, STEPS, URL, drive

bench = restate.Service("bench")
waiter = restate.Workflow("waiter")


async def add(n: int) -> int:
    return n + 1


async def add_slowly(n: int) -> int:
    await asyncio.sleep(SLOW_S)
    return n + 1


@bench.handler()
async def ten(ctx: restate.Context, n: int) -> int:
    for place in range(STEPS):
        n = await ctx.run_typed(f"add{place}", add, n=n)
    return n


@bench.handler()
async def ten_slowly(ctx: restate.Context, n: int) -> int:
    for place in range(STEPS):
        n = await ctx.run_typed(f"add{place}", add_slowly, n=n)
    return n


@bench.handler()
async def nothing(ctx: restate.Context) -> None:
    pass


@bench.handler()
async def child(ctx: restate.Context, n: int) -> int:
    return n


@bench.handler()
async def family(ctx: restate.Context) -> int:
    calls = [ctx.service_call(child, arg=n) for n in range(CHILDREN)]
    return sum([await one for one in await restate.gather(*calls)])


@waiter.main()
async def run(ctx: restate.WorkflowContext) -> str:
    payload: str = await ctx.promise("go", type_hint=str).value()
    return payload


@waiter.handler()
async def go(ctx: restate.WorkflowSharedContext, payload: str) -> None:
    await ctx.promise("go", type_hint=str).resolve(payload)


app = restate.app([bench, waiter])


class Engine:
    def __init__(self, session: Any) -> None:
        self._session = session

    async def _ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Any:
        """A handler without input refuses a type of one."""
        headers, data = dict(headers or {}), None
        if body is not None:
            headers["content-type"], data = "application/json", json.dumps(body)
        asked = self._session.request(method, f"{URL}/{path}", data=data, headers=headers)
        async with asked as answer:
            said = await answer.read()
            assert answer.status in (200, 202), (path, answer.status, said)
            return json.loads(said) if said else None

    async def _call(self, handler: str, body: object = None) -> Any:
        """With a key, so that the call counts once when it is repeated."""
        headers = {"idempotency-key": str(uuid.uuid4())}
        return await self._ask("POST", f"bench/{handler}", body, headers)

    async def ten(self) -> None:
        assert await self._call("ten", 0) == STEPS

    async def begin_wait(self, name: str) -> None:
        await self._ask("POST", f"waiter/{name}/run/send")

    async def signal(self, name: str) -> None:
        await self._ask("POST", f"waiter/{name}/go", name)
        assert await self._ask("GET", f"restate/workflow/waiter/{name}/attach") == name

    async def family(self) -> None:
        assert await self._call("family") == sum(range(CHILDREN))

    async def nothing(self) -> None:
        await self._call("nothing")

    async def slow(self) -> None:
        assert await self._call("ten_slowly", 0) == STEPS


def work() -> None:
    """As the documentation serves it in production."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{os.environ['DURABLE_SERVICE_PORT']}"]
    config.h2_max_concurrent_streams = 2147483647
    config.keep_alive_max_requests = 2147483647
    config.keep_alive_timeout = 2147483647
    asyncio.run(serve(app, config))


async def remote() -> None:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    session = aiohttp.ClientSession(
        timeout=timeout, connector=connector, skip_auto_headers=("Content-Type",)
    )
    async with session:
        await drive(Engine(session))


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work()
    else:
        asyncio.run(remote())
