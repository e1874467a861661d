"""Executions: submit, read, change."""

from pathlib import Path
from typing import Annotated, Any

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
    fail,
    run_command,
)
from flowfabric.fabric.admin import Admin
from flowfabric.operations.execution_queries import Attempts, ExecutionInfo, Search
from flowfabric.operations.executions import Submission, Submitted

app = typer.Typer()

Execution = Annotated[str, typer.Argument(help="An execution id, {fp:N}:uuid.")]
Reason = Annotated[str, typer.Option("--reason", "-r", help="Why; it is kept.")]


@app.command()
def submit(
    kind: Annotated[str, typer.Argument(help="What to run: the name of a task.")],
    payload: Annotated[
        str,
        typer.Argument(help='Its arguments as JSON, e.g. \'{"name": "Ada"}\'; @file reads one.'),
    ] = "{}",
    lane: Annotated[str, typer.Option("--lane", "-l", help="Instead of the task's lane.")] = "",
    key: Annotated[str, typer.Option("--key", help="Submit once under this key.")] = "",
    priority: Annotated[int | None, typer.Option("--priority", "-p")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="name=value, repeatable.")] = None,
    retries: Annotated[
        int | None, typer.Option("--retries", min=0, help="Tries after the first.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait and print the result.")] = False,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Submit an execution; options that are not given are those that the task declares."""
    given = _payload(payload)
    new = Submission(
        lane=lane,
        kind=kind,
        namespace=namespace,
        input=given,
        payload_encoding="json" if given else "",
        priority=priority,
        idempotency_key=key,
        tags=_tags(tag or []),
        creator="cli",
        policy={"retry_policy": {"max_retries": retries}} if retries is not None else None,
    )

    async def question(admin: Admin) -> tuple[Submitted, Any]:
        answer = await admin.submit(new)
        ended = await admin.wait_for_terminal(answer.execution_id) if wait else None
        return answer, ended

    answer, ended = ask(url, question)
    if json:
        show.as_json(ended if wait else answer)
    else:
        show.line(answer.execution_id)
        if not answer.is_new:
            show.line("the key was known: nothing new was submitted", style="yellow")
        if ended is not None:
            show.line(show.state(ended.state), show.body(ended.result) or ended.reason)
    if wait and ended is not None and ended.state != "completed":
        raise typer.Exit(1)


def _payload(text: str) -> bytes:
    raw = Path(text[1:]).read_bytes() if text.startswith("@") else text.encode()
    try:
        if raw:
            msgspec.json.decode(raw)
    except msgspec.DecodeError as fault:
        fail(f"payload: not JSON: {fault}")
    return raw


def _tags(given: list[str]) -> dict[str, str] | None:
    tags: dict[str, str] = {}
    for one in given:
        name, found, value = one.partition("=")
        if not found:
            fail(f"tag: expected name=value, got {one!r}")
        tags[name] = value
    return tags or None


@app.command()
def get(execution_id: Execution, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Show one execution, its attempts and its result."""

    async def question() -> tuple[ExecutionInfo, Attempts, bytes | None, str]:
        async with connected(url) as place:
            admin = place.admin
            found = await admin.describe_execution(execution_id)
            attempts = await admin.attempts(execution_id)
            trace = await place.run(execution_id).traceback()
            return found, attempts, await admin.result(execution_id), trace

    found, attempts, result, trace = run_command(question(), url)
    if json:
        answer = {"execution": found, "attempts": attempts.attempts, "result": result}
        show.as_json(answer | ({"traceback": trace} if trace else {}))
        return
    _show_facts(found, result)
    _show_children(found)
    _show_attempts(attempts)
    if trace:
        show.line()
        show.lines(trace.rstrip())


def _show_facts(found: ExecutionInfo, result: bytes | None) -> None:
    show.facts(
        [
            ("execution", found.execution_id),
            ("kind", found.execution_kind),
            ("state", show.state(found.public_state)),
            ("lane", f"{found.namespace}/{found.lane_id}"),
            ("flow", found.flow_id),
            ("parent", found.parent_id),
            ("waits for", found.blocking_detail),
            ("mailbox", _mailbox(found)),
            ("held by", _holder(found)),
            ("progress", _progress(found)),
            ("created", show.instant(found.created_at)),
            ("started", show.instant(found.started_at)),
            ("ended", show.instant(found.completed_at)),
            ("result", show.body(result)),
        ]
    )


def _show_children(found: ExecutionInfo) -> None:
    if found.children:
        show.line()
        show.table(
            ["child", "state"],
            ((one.execution_id, show.state(one.public_state)) for one in found.children),
        )
    if found.more_children:
        show.line("and more children; see all members of the flow")


def _show_attempts(attempts: Attempts) -> None:
    if attempts.attempts:
        show.line()
        show.table(
            ["attempt", "type", "state", "worker", "started", "failure"],
            (
                (
                    one.index,
                    one.type,
                    one.state,
                    one.worker_instance_id or "",
                    show.instant(one.started_at),
                    (one.failure_reason or "").partition("\n")[0],
                )
                for one in attempts.attempts
            ),
        )


def _mailbox(info: ExecutionInfo) -> str:
    """The unread signals, without their payloads."""
    if not info.mail_count:
        return ""
    kept = ", ".join(
        f"{one.signal_name} ({one.payload_bytes} bytes, {one.signal_id},"
        f" {show.instant(one.accepted_at)})"
        for one in info.mailbox
    )
    return f"{info.mail_count} unread: {kept}"


def _holder(found: ExecutionInfo) -> str:
    lease = found.current_lease if found.public_state == "active" else None
    return f"{lease.worker_instance_id} until {show.instant(lease.expires_at)}" if lease else ""


def _progress(found: ExecutionInfo) -> str:
    percent = "" if found.progress_pct is None else f"{found.progress_pct} %"
    return " ".join(filter(None, (percent, found.progress_message)))


@app.command("list")
def list_executions(
    state: Annotated[list[str] | None, typer.Option("--state", "-s", help="Repeatable.")] = None,
    lane: Annotated[str, typer.Option("--lane", "-l")] = "",
    kind: Annotated[str, typer.Option("--kind", "-k")] = "",
    tag: Annotated[list[str] | None, typer.Option("--tag", help="name=value, repeatable.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 20,
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """List executions, the newest first."""
    query = Search(
        namespace=namespace,
        state=tuple(state or ()),
        lane=lane,
        kind=kind,
        tag=tuple(tag or ()),
        limit=limit,
    )
    found = ask(url, lambda admin: admin.search(query))
    if json:
        show.as_json(found)
        return
    show.table(
        ["kind", "state", "lane", "attempts", "created", "execution"],
        (
            (
                one.execution_kind,
                show.state(one.public_state),
                one.lane_id,
                one.attempt_count,
                show.instant(one.created_at),
                one.execution_id,
            )
            for one in found.items
        ),
        empty="no executions",
    )


@app.command()
def cancel(
    execution_id: Execution, reason: Reason = "", url: Url = DEFAULT_URL, json: Json = False
) -> None:
    """Cancel an execution, whatever it is doing."""
    done = ask(url, lambda admin: admin.cancel(execution_id, reason or "cancelled from the shell"))
    show.as_json(done) if json else show.line(show.state(done.public_state))


@app.command()
def replay(
    execution_id: Execution, reason: Reason = "", url: Url = DEFAULT_URL, json: Json = False
) -> None:
    """Run an execution again from the beginning that has ended or is parked."""
    done = ask(url, lambda admin: admin.replay(execution_id, reason, "cli"))
    show.as_json(done) if json else show.line(show.state(done.public_state))


@app.command("continue")
def continue_execution(
    execution_id: Execution,
    until: Annotated[
        str, typer.Option(help="Keep only what came before this step: name, or name#3.")
    ] = "",
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Run an execution again that has ended or is parked, with the steps it has recorded."""
    done = ask(url, lambda admin: admin.replay(execution_id, reason, "cli", "keep", until))
    show.as_json(done) if json else show.line(show.state(done.public_state))


@app.command()
def resume(execution_id: Execution, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """End the wait of a suspended or parked execution: its handler is entered again."""
    done = ask(url, lambda admin: admin.resume(execution_id))
    show.as_json(done) if json else show.line(show.state(done.public_state))


@app.command()
def explain(execution_id: Execution, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Say why an execution is not running."""
    found = ask(url, lambda admin: admin.explain(execution_id))
    if json:
        show.as_json(found)
        return
    verdict = "running" if found.running else "not running" if found.blockers else "waits its turn"
    show.line(show.state(found.public_state), f"· {verdict}")
    for blocker in found.blockers:
        until = f", until {show.instant(blocker.until)}" if blocker.until else ""
        show.line(f"  {blocker.code}: {blocker.detail}{until}")
    if found.queue is not None:
        place = found.queue
        show.line(
            f"  lane {place.lane_id}: {place.ahead} ahead, {place.capable_workers} of"
            f" {place.live_workers} live workers could run it"
        )
    if found.next_timer is not None:
        show.line(f"  next: {found.next_timer.what} {show.instant(found.next_timer.at)}")
    if found.last_failure is not None:
        show.line(f"  last failure: {found.last_failure.reason.partition(chr(10))[0]}")
    for hint in found.hints:
        show.line(f"  try: {hint}", style="bright_black")


@app.command()
def tail(execution_id: Execution, url: Url = DEFAULT_URL, json: Json = False) -> None:
    """Follow the output of an execution until it ends, over all its attempts."""
    run_command(_tail(execution_id, url, json), url)


async def _tail(execution_id: str, url: str, json: bool) -> None:
    async with connected(url) as place:
        async for frame in place.run(execution_id).stream():
            if json:
                show.as_json(frame)
            else:
                show.lines(show.body(frame.payload))
