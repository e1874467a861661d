"""Settings, and the only reader of the environment."""

from flowfabric.config.environment import settings_for, settings_from
from flowfabric.config.settings import (
    DEFAULT_PATH,
    SERVER_SCHEMES,
    Address,
    Settings,
    StoreUrl,
    parse_store_url,
)
from flowfabric.core.api_tokens import ApiToken
from flowfabric.core.duty_filter import DutyFilter
from flowfabric.core.tokens import token_digest

__all__ = [
    "DEFAULT_PATH",
    "SERVER_SCHEMES",
    "Address",
    "ApiToken",
    "DutyFilter",
    "Settings",
    "StoreUrl",
    "parse_store_url",
    "settings_for",
    "settings_from",
    "token_digest",
]
