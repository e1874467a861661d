"""Budgets and quotas by name: where a namespace lists them, and whether it has those that a
submit names."""

from collections.abc import Sequence
from typing import Final, Literal
from uuid import UUID

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.types import ConfigPut
from flowfabric.core.ids import check_namespace, check_text, limit_id
from flowfabric.core.limits.gates import quota_gate
from flowfabric.core.policy import ExecutionPolicy, RawPolicy, decode_policy
from flowfabric.core.record import Record
from flowfabric.engine.checking import whole
from flowfabric.errors import BudgetNotFound, FlowFabricError, InvalidInput, QuotaNotFound

LimitKind = Literal["budget", "quota"]

MOST_NAME_BYTES: Final = 256
MOST_LISTED: Final = 1_000
_MOST_KNOWN: Final = 10_000


class Listed(msgspec.Struct, frozen=True):
    """An entry of the list of a namespace."""

    name: str
    id: str


def id_of_name(name: str, given_id: str, namespace: str, field: str) -> str:
    """The id of what is created: given, or made of its name, or "" when there is neither."""
    if not name:
        return given_id
    check_text(name, "name", MOST_NAME_BYTES, allow_control=False)
    if given_id:
        raise InvalidInput(f"name, {field}: expected one of them")
    try:
        UUID(name)
    except ValueError:
        return limit_id(check_namespace(namespace), name)
    raise InvalidInput(f"name: {name} is an id; give it as {field}")


class LimitList:
    """The names of one kind of limit, as documents, so that a namespace can list them."""

    def __init__(self, backend: Backend, kind: LimitKind) -> None:
        self._backend = backend
        self._kind = kind

    async def enter(self, namespace: str, name: str, limit_id: str) -> None:
        """Enter it before it is created: a list that is read passes over what does not exist."""
        document = self._document(namespace, name or limit_id)
        body = msgspec.json.encode(Listed(name or limit_id, limit_id))
        await self._backend.config_put([ConfigPut(document, 0, body)])

    async def page(self, namespace: str, cursor: str, limit: int) -> tuple[list[Listed], str]:
        """Entries by name, and where the next page begins."""
        whole(limit, "limit", 1, MOST_LISTED)
        prefix = self._document(check_namespace(namespace), "")
        after = prefix + check_text(cursor, "cursor", MOST_NAME_BYTES)
        found = await self._backend.config_list(prefix, after, limit + 1)
        entries = [msgspec.json.decode(one.body, type=Listed) for one in found[:limit]]
        return entries, entries[-1].name if len(found) > limit else ""

    def _document(self, namespace: str, name: str) -> str:
        return f"{self._kind}/{namespace}:{name}"


# ---- those that submits name


def resolved(policy: ExecutionPolicy, namespace: str) -> ExecutionPolicy:
    """The policy with ids in the place of names."""
    if not policy.budget_ids and not policy.quota_ids:
        return policy
    return msgspec.structs.replace(
        policy,
        budget_ids=_ids(policy.budget_ids, namespace),
        quota_ids=_ids(policy.quota_ids, namespace),
    )


def _ids(names: Sequence[str], namespace: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(limit_id(namespace, name) for name in names))


class KnownLimits:
    """Limits that exist, and never cease to: whoever names one of them again costs no trip."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: set[tuple[str, str]] = set()

    async def check(self, record: Record, given: RawPolicy) -> None:
        """Refuse a budget or quota that the namespace does not have, by the name that was given."""
        namespace, known = record.namespace, self._known
        budgets = [one for one in record.budget_ids if (namespace, one) not in known]
        quotas = [one for one in record.quota_ids if (namespace, one) not in known]
        if budgets:
            chains = await self._backend.budgets(budgets)
            owners = [chain[0].namespace if chain else None for chain in chains]
            self._note(namespace, budgets, owners, BudgetNotFound, given)
        if quotas:
            seen = await self._backend.gates([quota_gate(one) for one in quotas])
            found = [one.gate.quota if one else None for one in seen]
            owners = [one.namespace if one else None for one in found]
            self._note(namespace, quotas, owners, QuotaNotFound, given)

    def _note(
        self,
        namespace: str,
        ids: Sequence[str],
        owners: Sequence[str | None],
        missing: type[FlowFabricError],
        given: RawPolicy,
    ) -> None:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        for one, owner in zip(ids, owners, strict=True):
            if owner != namespace:
                raise missing(_missing(namespace, one, given))
            self._known.add((namespace, one))


def _missing(namespace: str, missing_id: str, given: RawPolicy) -> str:
    policy = decode_policy(bytes(given) if isinstance(given, msgspec.Raw) else given)
    names = (*policy.budget_ids, *policy.quota_ids)
    name = next((one for one in names if limit_id(namespace, one) == missing_id), missing_id)
    return f"{name}: namespace {namespace} has none of this name; define it before work names it"
