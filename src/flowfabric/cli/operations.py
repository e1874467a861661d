"""Operating a store: migrate, verify, doctor, rotate-key, backup."""

import os
import secrets
import shlex
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from flowfabric.cli import show
from flowfabric.cli.target import (
    DEFAULT_URL,
    Json,
    Namespace,
    Url,
    ask,
    connected,
    display_url,
    fail,
    own_settings,
    run_command,
)
from flowfabric.config import SERVER_SCHEMES, StoreUrl, parse_store_url, settings_from
from flowfabric.errors import FlowFabricError, UnsupportedStore
from flowfabric.fabric.admin import Admin
from flowfabric.operations.store import NewSecret

app = typer.Typer()

_SLOW_CLOCK_MS: Final = 2_000
_COLOURS: Final = {"ok": "green", "warn": "yellow", "fail": "red"}


class Finding(msgspec.Struct, frozen=True):
    """One thing looked at, and what to do about it."""

    level: Literal["ok", "warn", "fail"]
    what: str
    advice: str = ""


def store_of(url: str) -> StoreUrl:
    try:
        store = parse_store_url(url)
    except FlowFabricError as fault:
        fail(fault.detail)
    if store.scheme in SERVER_SCHEMES:
        fail("this looks at a store itself: name it, e.g. --url sqlite:///flowfabric.db")
    return store


@app.command()
def migrate(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be done.")
    ] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Bring the layout of a store to this release; a SQLite file is also brought there when it is
    opened."""
    from flowfabric.app import migrate_store, migrations_of

    settings = msgspec.structs.replace(own_settings(), store=store_of(url))

    async def bring() -> list[str]:
        steps = migrations_of(settings)
        if not dry_run:
            await migrate_store(settings)
        return steps

    steps = run_command(bring())
    if json:
        show.as_json({"steps": steps, "applied": not dry_run})
        return
    for step in steps:
        show.line(f"{'would apply' if dry_run else 'applied'} {step}")
    if not steps:
        show.line("up to date")


@app.command()
def verify(
    repair: Annotated[bool, typer.Option("--repair", help="Write derived data once more.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="Have SQLite check the file itself, too.")
    ] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Recompute all derived data of a store and report what differs, or what a repair left. On
    Valkey let nothing else run meanwhile."""
    from flowfabric.app import verified

    settings = msgspec.structs.replace(own_settings(), store=store_of(url))
    with show.console.status("verifying") if not json else show.console.capture():
        found = run_command(verified(settings, repairs=repair, deep=deep))
    if json:
        show.as_json(found)
    else:
        show.table(
            ["what", "of", "found", "expected"],
            ((one.kind, one.subject, one.found, one.expected) for one in found),
            empty="everything is as the records say",
        )
    if found:
        raise typer.Exit(1)


@app.command()
def doctor(namespace: Namespace = "default", url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Check settings, store, durability, clock and workers, and say what to fix."""
    findings = run_command(_examined(url, namespace))
    if json:
        show.as_json(findings)
    else:
        for one in findings:
            show.line(show.text(f"{one.level:<5}", _COLOURS[one.level]), one.what)
            if one.advice:
                show.line(f"      {one.advice}", style="bright_black")
    if any(one.level == "fail" for one in findings):
        raise typer.Exit(1)


async def _examined(url: str, namespace: str) -> list[Finding]:
    findings = [_settings()]
    try:
        async with connected(url) as place:
            findings += await _asked(place.admin, namespace)
            findings += _of_database(url)
            findings += _of_signing_keys(url)
    except UnsupportedStore:
        raise
    except FlowFabricError as fault:
        is_server = url.partition(":")[0] in SERVER_SCHEMES
        start = "start one with `flowfabric dev`" if is_server else "start it"
        findings.append(
            Finding("fail", f"{display_url(url)}: {fault}", f"{start}, or name another: --url")
        )
    return findings


def _of_database(url: str) -> list[Finding]:
    if url.partition(":")[0] in SERVER_SCHEMES:
        return []
    from flowfabric.app import database_findings

    settings = msgspec.structs.replace(own_settings(), store=parse_store_url(url))
    return [Finding("warn", what, advice) for what, advice in database_findings(settings)]


def _of_signing_keys(url: str) -> list[Finding]:
    """Whether a store that was opened here has its signing keys encrypted."""
    scheme = url.partition(":")[0]
    if scheme in (*SERVER_SCHEMES, "memory"):
        return []
    if own_settings().store_keys:
        return [Finding("ok", "signing keys: encrypted in the store")]
    what = "signing keys: in the clear in the store"
    return [Finding("ok", what, "FF_STORE_KEY encrypts them; see the reference of the settings")]


def _settings() -> Finding:
    try:
        settings_from()
    except FlowFabricError as fault:
        return Finding("fail", f"settings: {fault.detail}", "correct these FF_* variables")
    return Finding("ok", "settings can be read")


async def _asked(admin: Admin, namespace: str) -> list[Finding]:
    before = time.time() * 1_000
    store = await admin.describe()
    apart = abs(store.now - before) if store.now else 0
    findings = [Finding("ok", f"store: {store.family} {store.server_version}".rstrip())]
    if store.durability == "memory":
        advice = "everything is gone with the process; use sqlite:///file to keep it"
        findings.append(Finding("warn", "durability: none", advice))
    else:
        findings.append(Finding("ok", f"durability: {store.durability}"))
    if apart > _SLOW_CLOCK_MS:
        what = f"clock: {apart / 1_000:.1f} s apart from the store's"
        findings.append(Finding("warn", what, "let both hosts keep their time by NTP"))
    else:
        findings.append(Finding("ok", "clock: agrees with the store's"))
    return [*findings, *await _staffed(admin, namespace)]


async def _staffed(admin: Admin, namespace: str) -> list[Finding]:
    """Whether every lane with waiting work has a worker."""
    workers = (await admin.list_workers(namespace)).items
    served = {lane for one in workers for lane in one.lanes}
    findings = [Finding("ok", f"workers alive: {len(workers)}")]
    for lane in (await admin.list_lanes(namespace, limit=1_000)).items:
        waiting = (await admin.count(lane.lane_id, namespace)).counts.get("waiting", 0)
        if waiting and lane.lane_id not in served:
            what = f"lane {lane.lane_id}: {waiting} waiting and no worker"
            advice = f"flowfabric worker MODULE:APP --lane {lane.lane_id}"
            findings.append(Finding("warn", what, advice))
        if lane.state != "active":
            advice = f"flowfabric lanes {lane.lane_id} --state active"
            findings.append(Finding("warn", f"lane {lane.lane_id} is {lane.state}", advice))
    return findings


@app.command("rotate-key")
def rotate_key(
    kid: Annotated[str, typer.Argument(help="A name for the new key, without a colon.")],
    generate: Annotated[
        bool, typer.Option("--generate", help="Make a secret and print it, once.")
    ] = False,
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Sign waitpoint tokens with a new key; those of the old one stay valid for its grace."""
    text = secrets.token_hex(32) if generate else typer.prompt("new secret (hex)", hide_input=True)
    new = NewSecret(new_kid=kid, new_secret_hex=text)
    done = ask(url, lambda admin: admin.rotate_waitpoint_hmac_secret(new))
    if json:
        show.as_json({"rotated": done, "secret": text} if generate else done)
        return
    show.line(f"signing with {done.new_kid}")
    if generate:
        show.line(f"FF_WAITPOINT_HMAC_SECRET={text}")
        show.line("keep it: it is not shown again; set it on every server", style="yellow")


@app.command()
def backup(
    target: Annotated[Path, typer.Argument(help="The file to write.")],
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Copy a SQLite store while it is in use; for Postgres, print the command that does it."""
    store = store_of(url)
    if store.scheme == "postgres":
        command = _dump_command(store, target)
        show.as_json({"command": command}) if json else show.line(command)
        return
    if store.scheme != "sqlite":
        fail(f"{store.scheme} has its own tools for backups; this copies SQLite files")
    if target.exists():
        fail(f"{target} exists; nothing was written")
    if not Path(store.path).is_file():
        fail(f"{store.path}: there is no such file")
    run_command(_copied(store.path, target))
    size = target.stat().st_size
    show.as_json({"path": str(target), "bytes": size}) if json else show.line(
        f"{target}: {size:,} bytes"
    )


def _dump_command(store: StoreUrl, target: Path) -> str:
    """Without the password, which pg_dump asks for or reads from PGPASSWORD."""
    words = [
        *("pg_dump", "--format=custom", f"--schema={store.options.get('schema', 'flowfabric')}"),
        *(f"--host={store.host}", f"--port={store.port}", f"--dbname={store.path}"),
        *([f"--username={store.user}"] if store.user else []),
        f"--file={target}",
    ]
    return shlex.join(words)


async def _copied(source: str, target: Path) -> None:
    try:
        # For its owner only from the first byte: it holds payloads and the signing key.
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as reading,
            closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing)
    except (sqlite3.Error, OSError) as fault:
        fail(f"backup: {fault}")
