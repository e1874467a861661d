"""What people decide: approvals and signals."""

import getpass
from typing import Annotated
from uuid import uuid4

import msgspec
import typer

from flowfabric.cli import show
from flowfabric.cli.target import DEFAULT_URL, Json, Namespace, Url, ask, fail
from flowfabric.core.rules.signals import Accepted
from flowfabric.core.tokens import WaitpointToken
from flowfabric.fabric.admin import Admin
from flowfabric.operations.execution_queries import Search
from flowfabric.operations.signals import Approval, Delivered, Mail, NewSignal

app = typer.Typer()


@app.command()
def approve(
    execution_id: Annotated[
        str | None, typer.Argument(help="Which; left out, what waits is listed to choose from.")
    ] = None,
    waitpoint_id: Annotated[
        str | None, typer.Argument(help="Needed only when several are open.")
    ] = None,
    reject: Annotated[bool, typer.Option("--reject", help="Reject.")] = False,
    name: Annotated[str, typer.Option("--as", help="Whose decision it is.")] = "",
    comment: Annotated[str, typer.Option("--comment", "-c", help="A comment, which is kept.")] = "",
    namespace: Namespace = "default",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Approve (or reject) what waits for a person."""
    chosen = execution_id or _choose(url, namespace)
    if execution_id is None and not reject:
        reject = not typer.confirm(f"approve {chosen}?")
    waitpoint = waitpoint_id or _only_waitpoint(url, chosen)
    decision = Approval(
        signal_name="rejected" if reject else "approved",
        source_identity=name or getpass.getuser(),
        payload=msgspec.json.encode({"comment": comment}) if comment else None,
    )
    done = ask(url, lambda admin: admin.approve(chosen, waitpoint, decision))
    if json:
        show.as_json(done)
    else:
        show.line(f"{decision.signal_name} as {decision.source_identity}")


def _choose(url: str, namespace: str) -> str:
    """Show what waits and ask for one of it."""

    async def question(admin: Admin) -> list[tuple[str, str, str]]:
        waiting = Search(namespace=namespace, state=("suspended",))
        found = (await admin.search(waiting)).items
        return [(one.execution_kind, one.blocking_reason, one.execution_id) for one in found]

    waiting = ask(url, question)
    if not waiting:
        fail("nothing waits for a person")
    show.table(
        ["#", "kind", "waits for", "execution"],
        ((at, *one) for at, one in enumerate(waiting, 1)),
    )
    number = 1 if len(waiting) == 1 else typer.prompt("which", type=int)
    if not 1 <= number <= len(waiting):
        fail(f"there is no number {number}")
    return waiting[number - 1][2]


def _only_waitpoint(url: str, execution_id: str) -> str:
    found = ask(url, lambda admin: admin.list_pending_waitpoints(execution_id)).items
    if not found:
        fail(f"{execution_id} waits for nobody")
    if len(found) > 1:
        names = ", ".join(one.waitpoint_id for one in found)
        fail(f"several waitpoints are open, name one of: {names}")
    return found[0].waitpoint_id


@app.command()
def signal(
    execution_id: Annotated[str, typer.Argument(help="To which execution.")],
    name: Annotated[str, typer.Argument(help="The name of the signal.")],
    payload: Annotated[str, typer.Argument(help="A JSON payload.")] = "",
    id: Annotated[
        str, typer.Option("--id", help="Of signals with one id the first counts, for a day.")
    ] = "",
    waitpoint_id: Annotated[
        str, typer.Option("--waitpoint", help="To this waitpoint, whose token is asked for.")
    ] = "",
    source: Annotated[str, typer.Option("--as", help="Who sends it, to a waitpoint.")] = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Send a signal; the execution's mailbox keeps it until a wait for that name takes it."""
    if payload and not _is_json(payload):
        fail(f"payload: expected JSON, got {payload!r}; a text is written as '\"text\"'")
    if waitpoint_id:
        done = _to_waitpoint(url, execution_id, waitpoint_id, name, payload, source)
    else:
        # With an id of its own the request may be repeated after a lost answer.
        body = msgspec.Raw(payload.encode()) if payload else None
        mail = Mail(payload=body, id=id or str(uuid4()))
        done = ask(url, lambda admin: admin.signal_by_name(execution_id, name, mail))
    if json:
        show.as_json(done)
    elif isinstance(done, Accepted):
        show.line(f"accepted: {done.effect}")
    else:
        show.line("a repeat: the first one counted", style="yellow")


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _to_waitpoint(
    url: str, execution_id: str, waitpoint_id: str, name: str, payload: str, source: str
) -> Delivered:
    """By its token, which is asked for and not shown (or read from a pipe)."""
    new = NewSignal(
        waitpoint_id=waitpoint_id,
        signal_id=str(uuid4()),
        signal_name=name,
        signal_category="default",
        source_type="external",
        source_identity=source or getpass.getuser(),
        waitpoint_token=WaitpointToken(typer.prompt("token", hide_input=True)),
        payload=payload.encode() if payload else None,
    )
    return ask(url, lambda admin: admin.signal(execution_id, new))
