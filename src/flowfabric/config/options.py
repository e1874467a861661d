"""What the options in a store's address say, checked."""

import re
from typing import Final

from flowfabric.config.settings import StoreUrl
from flowfabric.errors import InvalidInput

MOST_POOLED: Final = 1_000


def libpq_parameters(store: StoreUrl) -> dict[str, str]:
    """What libpq connects with."""
    given = {
        "host": store.host,
        "port": str(store.port),
        "dbname": store.path,
        "user": store.user,
        "password": store.password.reveal(),
    }
    return given | {name: text for name, text in store.options.items() if name.startswith("ssl")}


def schema_of(store: StoreUrl) -> str:
    schema = store.options.get("schema", "flowfabric")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", schema):
        raise InvalidInput(f"schema: expected lower-case letters, digits and _, got {schema!r:.80}")
    return schema


def chosen(store: StoreUrl, name: str, *known: str) -> str:
    """The value of an option; the first of these without it."""
    text = store.options.get(name, known[0])
    if text not in known:
        raise InvalidInput(f"{name}: expected {' or '.join(known)}, got {text!r:.80}")
    return text


def number(store: StoreUrl, name: str, default: int, least: int, most: int) -> int:
    """The whole number that an option is."""
    text = store.options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise InvalidInput(f"{name}: expected {least}..{most}, got {text!r:.80}")
    return int(text)


def is_on(store: StoreUrl, name: str) -> bool:
    text = store.options.get(name, "false").lower()
    if text not in ("1", "true", "0", "false"):
        raise InvalidInput(f"{name}: expected true or false, got {text!r}")
    return text in ("1", "true")


def is_replicated(store: StoreUrl) -> bool:
    match store.options.get("durability", ""):
        case "":
            return False
        case "replicated":
            return True
        case text:
            raise InvalidInput(f"durability: expected replicated or nothing, got {text!r}")
