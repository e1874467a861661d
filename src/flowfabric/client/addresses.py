"""A server's address and token, checked before anything is sent."""

from urllib.parse import urlsplit, urlunsplit

from flowfabric.core.tokens import Secret
from flowfabric.errors import ConfigError


def base_of(url: str) -> str:
    """The address without a slash at its end; what does not belong into one is refused."""
    try:
        parts = urlsplit(url)
        has_port = parts.port is None or parts.port > 0
    except ValueError as fault:
        raise ConfigError(f"url: {fault}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not has_port:
        raise ConfigError("url: expected http://host:port or https://host")
    if parts.username is not None or parts.password is not None:
        raise ConfigError("url: a server's address has no credentials in it; pass a token")
    if parts.query or parts.fragment:
        raise ConfigError("url: a server's address has no parameters")
    return urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))


def checked_token(text: str) -> Secret:
    """A token that fits into a header; it is not repeated in a message."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError("token: blank, or not fit for a header")
    return Secret(text)
