"""Interceptors that refuse a call before its request is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any

import grpc

from cache_server.events import events
from cache_server.security import Token
from cache_server.service.flow import FlowControl, NoRoom
from cache_server.wire import STREAMS

Continuation = Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler]


class TokenGuard(grpc.ServerInterceptor):
    """Refuses requests without the token.

    Parameters
    ----------
    on_refusal: called with the method's full name for every refused request.
    """

    def __init__(self, token: Token, on_refusal: Callable[[str], None]) -> None:
        self._token, self._on_refusal = token, on_refusal

        def refuse(_requests: Any, context: grpc.ServicerContext) -> Any:
            events.note("refused token", "a request without the token", peer=context.peer())
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected this cluster's token")

        # As a stream method the handler gets the call before any message is read.
        self._refusal = grpc.stream_stream_rpc_method_handler(refuse)

    def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call: the usual one, or one that refuses it."""
        if self._token.is_shown_by(handler_call_details.invocation_metadata or ()):
            return continuation(handler_call_details)
        self._on_refusal(handler_call_details.method)
        return self._refusal


class WaitingGuard(grpc.ServerInterceptor):
    """Lets requests of streams wait for a thread only while there is memory for them.

    Parameters
    ----------
    on_refusal: called with the method's full name for every refused request.
    """

    def __init__(self, flow: FlowControl, on_refusal: Callable[[str], None]) -> None:
        self._flow = flow
        self._on_refusal = on_refusal
        # Refusals have a thread of their own, since the threads for rows are all busy.
        self._pool = futures.ThreadPoolExecutor(1, thread_name_prefix="refusals")

    def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call: the usual one, or one that refuses it."""
        method = handler_call_details.method
        if method in STREAMS:
            try:
                self._flow.check_waiting()
            except NoRoom as error:
                self._flow.make_room(error.client)
                self._on_refusal(method)
                refuse: Any = partial(self._refuse, str(error))
                refuse.experimental_thread_pool = self._pool
                return grpc.stream_stream_rpc_method_handler(refuse)
        return continuation(handler_call_details)

    def _refuse(self, text: str, _requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        # The method is a stream, so the request's message is never read.
        events.note("no room", text, peer=context.peer())
        context.set_trailing_metadata(self._flow.retry_hint())
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details(text)
        return iter(())
