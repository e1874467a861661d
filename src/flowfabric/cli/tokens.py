"""API tokens that are made while servers run."""

from typing import Annotated, cast, get_args

import typer

from flowfabric.cli import show
from flowfabric.cli.target import DEFAULT_URL, Json, Url, ask, fail
from flowfabric.config import SERVER_SCHEMES
from flowfabric.core.scopes import Scope
from flowfabric.errors import ConfigError
from flowfabric.operations.tokens import NewToken, TokenInfo
from flowfabric.worker.durations import optional_ms

app = typer.Typer(
    name="token", help="Make, list and revoke API tokens of servers.", no_args_is_help=True
)

_SCOPES = get_args(Scope)


def _scope(text: str) -> Scope:
    if text not in _SCOPES:
        fail(f"--scope: expected one of {', '.join(_SCOPES)}, got {text!r}")
    return cast(Scope, text)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="Whose it is; shown in the audit log.")],
    scope: Annotated[
        list[str],
        typer.Option("--scope", "-s", help=f"What it may do, several: {', '.join(_SCOPES)}."),
    ],
    namespace: Annotated[
        list[str] | None,
        typer.Option("--namespace", "-n", help="Where; several. Left out: all of yours."),
    ] = None,
    expires: Annotated[str, typer.Option("--expires", help="When it ends, e.g. 30d.")] = "",
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Make a token and print it, once. Servers of the store take it within seconds."""
    new = NewToken(
        name=name,
        scopes=tuple(map(_scope, scope)),
        namespaces=tuple(namespace) if namespace else None,
        expires_in_ms=_length(expires),
    )
    made = ask(url, lambda admin: admin.create_token(new))
    if json:
        show.as_json(made)
        return
    show.line(made.token)
    show.line(f"this is the token of {made.name!r}, id {made.token_id}", style="bright_black")
    show.line("keep it: it is not shown again", style="yellow")
    if url.partition(":")[0] not in SERVER_SCHEMES:
        show.line("servers of this store ask every caller for a token from now on", style="yellow")


def _length(text: str) -> int | None:
    try:
        return optional_ms(text or None, "--expires")
    except ConfigError as fault:
        fail(fault.detail)


@app.command("list")
def list_(url: Url = DEFAULT_URL, json: Json = False) -> None:
    """List the tokens that were made at run time; those of a server's settings are not shown."""
    found = ask(url, lambda admin: admin.list_tokens(limit=1_000)).items
    if json:
        show.as_json(found)
        return
    show.table(
        ["id", "name", "scopes", "namespaces", "made", "by", "ends"],
        (_row(one) for one in sorted(found, key=lambda one: one.name)),
        empty="no token was made at run time",
    )


def _row(one: TokenInfo) -> tuple[str, ...]:
    namespaces = "all" if one.namespaces is None else ", ".join(one.namespaces)
    ends = show.instant(one.expires_at) or "never"
    made = show.instant(one.created_at)
    return one.token_id, one.name, ", ".join(one.scopes), namespaces, made, one.created_by, ends


@app.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="Its id, as `token list` shows it.")],
    url: Url = DEFAULT_URL,
    json: Json = False,
) -> None:
    """Revoke a token; servers of the store refuse it within seconds."""
    ask(url, lambda admin: admin.revoke_token(token_id))
    show.as_json({"revoked": token_id}) if json else show.line(f"revoked {token_id}")
