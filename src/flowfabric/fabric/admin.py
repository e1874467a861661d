"""`fabric.admin`: everything a server offers, for whatever the fabric is connected to."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from flowfabric.errors import ConfigError
from flowfabric.fabric.connecting import Connection, lazy

if TYPE_CHECKING:
    from flowfabric.client.admin import Admin
    from flowfabric.client.rest import Rest


def admin_of(open_connection: Callable[[], Awaitable[Connection]]) -> "Admin":
    """Nothing is opened before the first question."""
    try:
        from flowfabric.client.admin import Admin
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"admin: needs the package {fault.name}: install flowfabric[http]"
        ) from None

    async def reach() -> "Rest":
        return (await open_connection()).rest()

    return Admin(reach, lazy(open_connection))
