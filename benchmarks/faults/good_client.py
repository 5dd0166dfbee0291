"""A client with valid requests. It measures latencies and checks the rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.client import FeatureClient
from cache_server.errors import CallError
from cache_server.shard import Shard

_IDS = 20
_DEADLINE = 30.0


class GoodClient:
    """Asks a feature server for rows in a thread of its own, one time after the other, with the
    retries of :class:`FeatureClient`.

    Attributes
    ----------
    wrong: failures, and rows that were not asked for.
    """

    def __init__(self, address: str, shard: Shard, seed: int) -> None:
        self._address = address
        self._draw = np.random.default_rng(seed)
        self._table = next(
            table for table in shard.tables.values() if table.spec.kind == "features"
        )
        self._ended = threading.Event()
        self._seconds: list[float] = []
        self.wrong: list[str] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask for rows while the context lasts."""
        self._ended.clear()
        thread = threading.Thread(target=self._run, name="good client")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def latencies(self) -> dict[str, Any]:
        """Return the number of requests since the last call, and their latencies in
        milliseconds."""
        seconds, self._seconds = np.array(self._seconds or [np.nan]), []
        p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
        return {
            "requests": int(seconds.size), "p50_ms": round(float(p50), 3),
            "p99_ms": round(float(p99), 3),
        }  # fmt: skip

    def _run(self) -> None:
        spec, row_bytes = self._table.spec, self._table.row_bytes
        with FeatureClient([self._address], deadline=_DEADLINE) as client:
            while not self._ended.is_set():
                ids = spec.first_id + self._draw.integers(0, spec.count, _IDS)
                out = np.empty((_IDS, spec.dim), spec.dtype)
                begun = time.monotonic()
                try:
                    client.fetch_rows("features", spec.type, {0: ids}, out, {0: slice(None)})
                except CallError as error:
                    self.wrong.append(f"a client whose requests make sense: {error}")
                    continue
                self._seconds.append(time.monotonic() - begun)
                if not np.array_equal(out.view(np.uint8), self._rows(ids, row_bytes)):
                    self.wrong.append("a client whose requests make sense: other rows")

    def _rows(self, ids: NDArray[np.int64], row_bytes: int) -> NDArray[np.uint8]:
        rows = np.empty((ids.size, row_bytes), np.uint8)
        self._table.gather(self._table.local_rows(ids), rows)
        return rows
