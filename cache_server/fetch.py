"""One fetch of rows: which rows are still missing, and asking one server until none is.

Rows arrive in the order of the ids, so "what is still missing" is a single number per server; that
is what makes a retry cheap and a large fetch a sequence of requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from cache_server.errors import BadRequest
from cache_server.generated import features_pb2
from cache_server.retry import Deadline, Patience
from cache_server.wire import DTYPES, AlteredChunk, ChunkSeeds, check_name, encode_ids, read_chunk


class Part:
    """What one server contributes: ids, where their rows go, and how many have arrived.

    Parameters
    ----------
    server: index, for errors.
    ids: [n] int64 global ids.
    rows: [rows, row_bytes] uint8, all of the destination.
    place: the rows to fill, in the order of ``ids``: a slice, or [n] int64.

    Raises
    ------
    BadRequest: ids and places do not fit each other or the destination.
    """

    def __init__(
        self,
        server: int,
        ids: NDArray[np.int64],
        rows: NDArray[np.uint8],
        place: slice | NDArray[np.int64],
    ) -> None:
        if ids.dtype != np.int64 or ids.ndim != 1:
            raise BadRequest(
                f"ids for server {server}: expected [n] int64, found {ids.dtype} {ids.shape}"
            )
        if isinstance(place, slice):
            rows = rows[place]
            count = len(rows)
        else:
            _check_places(server, place, len(rows))
            count = place.size
        if count != ids.size:
            raise BadRequest(f"places for server {server}: {count} rows for {ids.size} ids")
        self.server = server
        self.ids = ids
        self.done = 0
        self._rows = rows
        self._place = None if isinstance(place, slice) else place

    def take(self, message: bytes, seed: int, end: int) -> None:
        """Write the rows of a serialised ``RowChunk``.

        Raises
        ------
        AlteredChunk: they are not those that were sent.
        ValueError: they exceed row ``end``.
        """
        data = read_chunk(message, seed)
        row_bytes = self._rows.shape[1]
        count, rest = divmod(data.size, row_bytes)
        if rest or self.done + count > end:
            raise ValueError(
                f"a chunk of {data.size} bytes where at most {end - self.done} rows of "
                f"{row_bytes} bytes were due"
            )
        span = slice(self.done, self.done + count)
        target = span if self._place is None else self._place[span]
        self._rows[target] = data.reshape(count, row_bytes)
        self.done += count


class Fetch:
    """The parts of one fetch under one deadline; the first failure ends them all.

    Parameters
    ----------
    kind, type: the table.
    out: as in :meth:`FeatureClient.fetch_rows`.
    deadline: for all parts together.
    ids_per_request: the most ids that one request asks for.

    Raises
    ------
    BadRequest: ``out`` cannot receive rows, or no table can have this name.
    """

    def __init__(
        self, kind: str, type: str, out: NDArray[Any], deadline: Deadline, ids_per_request: int
    ) -> None:
        if out.ndim not in (1, 2) or not out.flags.c_contiguous or not out.flags.writeable:
            raise BadRequest(
                "out: expected a writable C-contiguous array [rows, dim] or [rows], found shape "
                f"{out.shape}, strides {out.strides}, writable {out.flags.writeable}"
            )
        if out.dtype.name not in DTYPES or not out.dtype.isnative:
            raise BadRequest(f"out: dtype {out.dtype.str} is not one of {', '.join(DTYPES)}")
        check_name("kind", kind)
        check_name("type", type)
        dim = out.shape[1] if out.ndim == 2 else 1
        self._wanted = {"kind": kind, "type": type, "dtype": out.dtype.name, "dim": dim}
        self.rows = out.reshape(len(out), dim).view(np.uint8)
        self.operation = f"FetchRows {kind}/{type}"
        self.deadline = deadline
        self.stop = threading.Event()
        self._ids_per_request = ids_per_request
        self._calls: set[Any] = set()
        self._lock = threading.Lock()

    def abandon(self) -> None:
        """Cancel the calls that run and end the waits between attempts."""
        self.stop.set()
        with self._lock:
            for call in self._calls:
                call.cancel()

    def fill(
        self,
        part: Part,
        stub: Callable[..., Any],
        patience: Patience,
        count: Callable[[int, int, int], None],
    ) -> None:
        """Ask ``part.server`` until all rows of the part are there.

        Parameters
        ----------
        stub: ``FetchRows`` of the server's channel, bytes in and bytes out.
        patience: decides about failed attempts.
        count: called as (server, bytes sent, bytes received) after every request.

        Raises
        ------
        CallError: as ``patience`` decides.
        """
        while part.done < part.ids.size:
            start = part.done
            end = min(start + self._ids_per_request, part.ids.size)
            request = features_pb2.FetchRowsRequest(
                ids=encode_ids(part.ids[start:end]), **self._wanted
            ).SerializeToString()
            timeout = patience.attempt_seconds()
            seeds, received = ChunkSeeds(request), 0
            try:
                with self._watched(stub(request, timeout=timeout)) as call:
                    for message in call:
                        received += len(message)
                        part.take(message, seeds.take(), end)
                if part.done != end:
                    raise ValueError(f"{part.done - start} of {end - start} rows came")
            except grpc.RpcError as error:
                if part.done > start:
                    patience.progressed()
                patience.failed(error)
            except AlteredChunk as error:
                # What a network card or a cable does once it need not do again.
                patience.altered(str(error))
            except ValueError as error:
                raise patience.bad_reply(str(error)) from error
            finally:
                count(part.server, len(request), received)

    @contextmanager
    def _watched(self, call: Any) -> Iterator[Any]:
        """``call``, cancelled by :meth:`abandon` and on the way out if it still runs."""
        with self._lock:
            self._calls.add(call)
        try:
            # ``abandon`` may have gone through the calls just before this one was added.
            if self.stop.is_set():
                call.cancel()
            yield call
        finally:
            with self._lock:
                self._calls.discard(call)
            call.cancel()


def run_all(
    pool: futures.Executor, tasks: Sequence[Callable[[], None]], abandon: Callable[[], None]
) -> None:
    """Run all tasks at once, the last one in this thread; raise the failure that came first.

    ``abandon`` is called on every failure and has to bring the other tasks to their end.
    """
    failures: list[BaseException] = []

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:
            failures.append(error)
            abandon()

    if not tasks:
        return
    pending = [pool.submit(guarded, task) for task in tasks[:-1]]
    guarded(tasks[-1])
    try:
        futures.wait(pending)
    except BaseException:
        abandon()
        raise
    if failures:
        raise failures[0]


def _check_places(server: int, places: NDArray[np.int64], rows: int) -> None:
    if places.dtype != np.int64 or places.ndim != 1:
        raise BadRequest(
            f"places for server {server}: expected a slice or [n] int64, "
            f"found {places.dtype} {places.shape}"
        )
    if places.size and (places.min() < 0 or places.max() >= rows):
        bad = places[(places < 0) | (places >= rows)][0]
        raise BadRequest(f"places for server {server}: {bad} is outside [0, {rows}), rows of out")
