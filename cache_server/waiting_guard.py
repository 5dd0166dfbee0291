"""Refusing requests that there is no memory for, before they wait for a thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from functools import partial
from typing import Any

import grpc

from cache_server.events import events
from cache_server.memory_in_flight import MemoryExhausted, MemoryInFlight
from cache_server.retry import retry_hint
from cache_server.wire import FETCH_ROWS, SAMPLE_NEIGHBORS


class WaitingGuard(grpc.ServerInterceptor):
    """Lets requests for rows and neighbours wait as long as there is memory for them.

    Parameters
    ----------
    memory: what waits and what is answered hold.
    on_refusal: called with the path of the method of each that is refused.
    """

    def __init__(self, memory: MemoryInFlight, on_refusal: Callable[[str], None]) -> None:
        self._memory = memory
        self._on_refusal = on_refusal
        # A thread of its own: those of rows are what there is too little of.
        self._pool = futures.ThreadPoolExecutor(1, thread_name_prefix="refusals")

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        """See :class:`grpc.ServerInterceptor`."""
        method = handler_call_details.method
        if method in (FETCH_ROWS, SAMPLE_NEIGHBORS):
            try:
                self._memory.check_waiting()
            except MemoryExhausted as error:
                self._on_refusal(method)
                refuse: Any = partial(self._refuse, str(error))
                refuse.experimental_thread_pool = self._pool
                return grpc.stream_stream_rpc_method_handler(refuse)
        return continuation(handler_call_details)

    def _refuse(self, text: str, _requests: Any, context: grpc.ServicerContext) -> Iterator[bytes]:
        # Of a stream nothing is read until somebody asks for it.
        events.note("no room", text, peer=context.peer())
        context.set_trailing_metadata(retry_hint(self._memory.waiting))
        context.set_code(grpc.StatusCode.RESOURCE_EXHAUSTED)
        context.set_details(text)
        return iter(())
