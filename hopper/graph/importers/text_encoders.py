"""Text encoders as functions of SQL, and a file of the rows that they have made."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import ConfigDict

from hopper.config.plug_ins import explain_errors, find_plug_in
from hopper.errors import GraphError

_TELL_SECONDS: Final = 10.0


class TextEncoder(Protocol):
    """Turns texts into features. Every ``SentenceTransformer`` of sentence-transformers is one."""

    def encode(self, texts: list[str]) -> Any:
        """Return [n, width] numbers for n texts; the same row for the same text each time."""


@dataclass(frozen=True)
class EncoderFunction:
    """A function of SQL that encodes texts."""

    __pydantic_config__ = ConfigDict(extra="forbid")
    encoder: str
    """a :class:`TextEncoder`, as "package.module:Class" """
    options: Mapping[str, Any] = field(default_factory=dict)
    """keyword arguments of its constructor"""
    cache: str = ""
    """a file that keeps the rows, so that no text is encoded again by an import that goes on, or
    comes later; "" = none"""

    def make(self, name: str, folder: Path, tell: Callable[[str], None]) -> EncodedTexts:
        """Make the encoder; ``folder`` is where a relative path begins. A ConfigError tells that
        the class cannot be imported, is no encoder, or refuses its options."""
        plug_in = find_plug_in(
            "encoder", self.encoder, TextEncoder, {}, self.options, options_key="options"
        )
        identity = json.dumps([self.encoder, self.options], sort_keys=True, default=str)
        cache = _RowFile(folder / self.cache, identity) if self.cache else None
        return EncodedTexts(name, plug_in.make(), cache, tell)


class EncodedTexts:
    """Encodes columns of texts; each text of a batch once, and none that the file has."""

    def __init__(
        self, name: str, encoder: TextEncoder, cache: _RowFile | None, tell: Callable[[str], None]
    ) -> None:
        self._name, self._encoder, self._cache, self._tell = name, encoder, cache, tell
        self._lock = threading.Lock()
        self._widths = set[int]()
        self._encoded = self._found = 0
        self._told = time.monotonic()

    def __call__(self, column: Any) -> Any:
        """Return a pyarrow array of lists of float32 for one of texts without NULLs."""
        import pyarrow as arrow

        # DuckDB calls from several threads.
        with self._lock:
            texts = column.unique().to_pylist()
            rows = self._cache.read(texts) if self._cache else {}
            missing = [text for text in texts if text not in rows]
            if missing:
                new = self._encode(missing)
                if self._cache:
                    self._cache.add(missing, new)
                rows |= zip(missing, new, strict=True)
            self._widths |= {row.size for row in rows.values()}
            if len(self._widths) > 1:
                raise GraphError(
                    f"encoders.{self._name}: expected rows of one width, given "
                    f"{sorted(self._widths)}; remove the cache after changing the encoder"
                )
            self._report(len(missing), len(texts) - len(missing))
        values = [rows[text] for text in column.to_pylist()]
        return arrow.array(values, arrow.list_(arrow.float32()))

    def _encode(self, texts: list[str]) -> NDArray[np.float32]:
        with explain_errors(f"encoders.{self._name} failed"):
            rows = np.asarray(self._encoder.encode(texts), np.float32)
        if rows.ndim != 2 or len(rows) != len(texts) or not rows.shape[1]:
            raise GraphError(
                f"encoders.{self._name}: expected rows of shape [{len(texts)}, width], given "
                f"{list(rows.shape)}"
            )
        return rows

    def _report(self, encoded: int, found: int) -> None:
        self._encoded, self._found = self._encoded + encoded, self._found + found
        if time.monotonic() - self._told > _TELL_SECONDS:
            self._told = time.monotonic()
            kept = f", {self._found:,} were known" if self._cache else ""
            self._tell(f"{self._name}: {self._encoded:,} texts encoded{kept}")


class _RowFile:
    """A SQLite file of rows by encoder and text, which is whole after each batch."""

    def __init__(self, file: Path, encoder: str) -> None:
        self._file, self._encoder = file, encoder.encode()
        try:
            with closing(sqlite3.connect(file)) as connection:
                connection.execute(
                    "CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, row BLOB) WITHOUT ROWID"
                )
        except sqlite3.Error as error:
            raise GraphError(f"{file}: cannot keep encoded texts: {error}") from error

    def _keys(self, texts: Sequence[str]) -> list[str]:
        return [xxhash.xxh3_128_hexdigest(self._encoder + b"\0" + text.encode()) for text in texts]

    def read(self, texts: Sequence[str]) -> dict[str, NDArray[np.float32]]:
        """Return the rows that are there, by text."""
        by_key = dict(zip(self._keys(texts), texts, strict=True))
        query = "SELECT key, row FROM rows WHERE key IN (SELECT value FROM json_each(?))"
        with closing(sqlite3.connect(self._file)) as connection:
            found = connection.execute(query, [json.dumps(list(by_key))])
            return {by_key[key]: np.frombuffer(row, np.float32) for key, row in found}

    def add(self, texts: Sequence[str], rows: NDArray[np.float32]) -> None:
        """Keep rows [n, width] of texts."""
        values = zip(self._keys(texts), map(bytes, rows), strict=True)
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?)", values)
