"""Processes: a development server, a server, a worker."""

import os
import sys
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import msgspec
import typer

from flowfabric.cli import show
from flowfabric.cli.apps import loaded, named_store
from flowfabric.cli.development import App, Development, reloading
from flowfabric.cli.target import DEFAULT_URL, code_of, fail, run_command
from flowfabric.config import Address, Settings, StoreUrl, parse_store_url, settings_from
from flowfabric.errors import FlowFabricError
from flowfabric.telemetry.logs import write_logs

if TYPE_CHECKING:
    from flowfabric.fabric.app import FlowFabric

app = typer.Typer()

SAMPLE = "flowfabric.demo.app:fabric"
Config = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP|PACKAGE",
        help="Where the FlowFabric object is; of a package all modules are imported.",
    ),
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option("--log-level", envvar="FF_LOG_LEVEL", help="What to log, from this level on."),
]


def _settings(file: Path | None) -> Settings:
    try:
        return settings_from(file=file)
    except FlowFabricError as fault:
        problems = fault.details.get("problems")
        fail(*(map(str, problems) if isinstance(problems, tuple) else (fault.detail,)))


@app.command()
def server(config: Config = None, log_level: LogLevel = "info") -> None:
    """Serve the REST API, configured by FF_* variables."""
    from flowfabric.server.run import serve

    write_logs(log_level)
    _run(serve(_settings(config)))


@app.command()
def dev(
    target: Annotated[
        str,
        typer.Argument(metavar="[MODULE:APP|PACKAGE]", help="An app whose worker is run, too."),
    ] = "",
    sample: Annotated[bool, typer.Option("--sample", help="Run the sample app.")] = False,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535)] = 9090,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="Where everything is kept: sqlite:///file, postgresql://…, valkey://…, memory://.",
            show_default="FF_URL, else a SQLite file",
        ),
    ] = None,
    config: Config = None,
) -> None:
    """Store, server, duties and, for an app, its worker, in one command."""
    from flowfabric.server.run import serve

    settings = msgspec.structs.replace(
        _settings(config), listen=Address("127.0.0.1", port), generates_secret=True
    )
    if store is not None:
        settings = msgspec.structs.replace(settings, store=_store_at(store))
    named = named_store(target) if target else None
    if named not in (None, settings.store):
        _refuse_store(target, named, settings.store)
    app = App(SAMPLE if sample else target, names_store=named is not None, is_sample=sample)
    development = Development(settings, app)

    async def run() -> None:
        try:
            await serve(settings, development.begin)
        finally:
            await development.end()

    _run(run())


def _store_at(url: str) -> StoreUrl:
    try:
        return parse_store_url(url)
    except FlowFabricError as fault:
        fail(f"--store: {fault.detail}", code=2)


def _run(work: Coroutine[Any, Any, None]) -> None:
    import uvloop

    try:
        uvloop.run(work)
    except FlowFabricError as fault:
        fail(str(fault), code=code_of(fault))
    except OSError as fault:
        fail(f"cannot listen: {fault}; choose another port with --port")


@app.command()
def worker(
    target: Target,
    lane: Annotated[list[str] | None, typer.Option("--lane", "-l", help="Repeatable.")] = None,
    capability: Annotated[
        list[str] | None, typer.Option("--capability", "-c", help="What it can do; repeatable.")
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1)] = 64,
    lease: Annotated[
        str, typer.Option("--lease", help="Others take its work after this long without a renewal.")
    ] = "30s",
    drain: Annotated[
        str,
        typer.Option("--drain", help="How long running work may take to end at a stop."),
    ] = "30s",
    reload: Annotated[bool, typer.Option("--reload", help="Restart when code changes.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=65_535, help="Show metrics there, to this host; 0: any."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar="FF_URL",
            help="A server or a store, for an app that names none itself.",
            show_default=DEFAULT_URL,
        ),
    ] = None,
    build: Annotated[
        str, typer.Option("--build", envvar="FF_BUILD", help="The release, shown with its tasks.")
    ] = "",
    log_level: LogLevel = "info",
) -> None:
    """Run the tasks of an app."""
    if reload:
        command = [sys.executable, "-m", "flowfabric.cli", *sys.argv[1:]]
        raise typer.Exit(reloading([word for word in command if word != "--reload"], target))
    os.environ["FF_URL"] = url or DEFAULT_URL
    fabric = loaded(target)
    if url and fabric.named_store not in (None, wanted := parse_store_url(url)):
        _refuse_store(target, fabric.named_store, wanted)
    write_logs(log_level)

    options = {
        "lanes": lane or None,
        "capabilities": capability or [],
        "concurrency": concurrency,
        "lease": lease,
        "drain": drain,
        "build": build,
    }
    with _metrics_of(fabric, metrics_port):
        run_command(_work(fabric, target, options), url or DEFAULT_URL)


async def _work(fabric: "FlowFabric", target: str, options: dict[str, Any]) -> None:
    at_work = fabric.worker(**options)
    async with fabric:
        lanes = ", ".join(at_work.options.lanes)
        show.line(
            f"worker of {target} on {fabric.where}, lanes {lanes}; Ctrl-C hands its work back"
        )
        show.line(f"tasks: {', '.join(fabric.kinds)}")
        await at_work.run()


@contextmanager
def _metrics_of(fabric: "FlowFabric", port: int | None) -> Iterator[None]:
    if port is None:
        yield
        return
    try:
        from flowfabric.telemetry.metrics import LOOPBACK, Metrics, serving_metrics
    except ModuleNotFoundError as fault:
        fail(f"--metrics-port needs the package {fault.name}: install flowfabric[telemetry]")
    metrics = Metrics()
    fabric.observe(metrics)
    with ExitStack() as stack:
        try:
            served = stack.enter_context(serving_metrics(metrics, port))
        except OSError as fault:
            fail(f"cannot show metrics: {fault}; choose another --metrics-port")
        show.line(f"metrics on http://{LOOPBACK}:{served}/metrics")
        yield


def _refuse_store(target: str, named: StoreUrl | None, wanted: StoreUrl) -> NoReturn:
    assert named is not None
    fail(
        f"{target} works on {named.where}, not on {wanted.where}: write FlowFabric() without an"
        " address, or give that address with FF_URL",
        code=2,
    )
