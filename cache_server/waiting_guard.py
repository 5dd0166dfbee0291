"""Refuses requests that would exceed the memory limit before they wait for a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any

import grpc

from cache_server.events import events
from cache_server.flow import FlowControl
from cache_server.memory_in_flight import NoRoom
from cache_server.retry import retry_hint
from cache_server.wire import FETCH_ROWS, SAMPLE_NEIGHBORS


class WaitingGuard(grpc.ServerInterceptor):
    """Lets requests for rows and neighbours wait only while there is memory for them.

    Parameters
    ----------
    flow: counts what waiting requests and running replies hold.
    on_refusal: called with the method's full name for every refused request.
    """

    def __init__(self, flow: FlowControl, on_refusal: Callable[[str], None]) -> None:
        self._flow = flow
        self._on_refusal = on_refusal
        # Refusals have a thread of their own, since the threads for rows are all busy.
        self._pool = futures.ThreadPoolExecutor(1, thread_name_prefix="refusals")

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a call: the usual one, or one that refuses it."""
        method = handler_call_details.method
        if method in (FETCH_ROWS, SAMPLE_NEIGHBORS):
            try:
                self._flow.memory.check_waiting()
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
        context.set_trailing_metadata(retry_hint(self._flow.memory.waiting))
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details(text)
        return iter(())
