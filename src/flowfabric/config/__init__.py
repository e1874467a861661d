"""Settings, and the only reader of the environment."""

from flowfabric.config.addresses import parse_store_url
from flowfabric.config.environment import settings_from
from flowfabric.config.settings import (
    DEFAULT_PATH,
    SCOPES,
    SERVER_SCHEMES,
    Address,
    ApiToken,
    DutyFilter,
    Scope,
    Settings,
    StoreUrl,
    token_digest,
)

__all__ = [
    "DEFAULT_PATH",
    "SCOPES",
    "SERVER_SCHEMES",
    "Address",
    "ApiToken",
    "DutyFilter",
    "Scope",
    "Settings",
    "StoreUrl",
    "parse_store_url",
    "settings_from",
    "token_digest",
]
