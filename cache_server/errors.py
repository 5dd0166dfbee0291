"""The errors that the feature service raises; their texts are meant for the user."""

from __future__ import annotations


class CacheServerError(Exception):
    """Base of all errors of the feature service."""


class ManifestError(CacheServerError):
    """``shard.json`` or a table that it names is unusable; names the file and the field."""


class SourceError(CacheServerError):
    """A class that provides rows cannot be made, or its rows are not as it declares; names it."""


class ListenError(CacheServerError):
    """The address to listen on is malformed or cannot be bound."""


class SecurityError(CacheServerError):
    """Certificates or a token cannot be used, or an address lacks them; names the setting."""


class BadRequest(CacheServerError):
    """A request cannot be answered, or not be sent; names what came and what exists."""


class CallError(CacheServerError):
    """A call to one server failed: its ``operation``, for example ``FetchRows features/paper``,
    within ``limit_seconds``, because of ``detail``."""

    def __init__(
        self, server: int, address: str, operation: str, limit_seconds: float, detail: str
    ) -> None:
        super().__init__(
            f"feature server {server} at {address}: {operation}: {detail} "
            f"(limit {limit_seconds:g} s)"
        )
        self.server = server
        self.address = address
        self.operation = operation
        self.limit_seconds = limit_seconds
        self.detail = detail


class InvalidRequest(CallError):
    """The server refused the request (bad id, unknown table, wrong dtype, too large, ...)."""


class ServerUnavailable(CallError):
    """The server could not be reached, or went away, and did not come back within the limit."""


class DeadlineExceeded(CallError):
    """The server was reached but did not finish within the limit."""


class BadReply(CallError):
    """The reply does not fit the question: rows of another size, another server, too few rows."""


class ServerFault(CallError):
    """The server reported a failure of its own, or the call was cancelled."""
