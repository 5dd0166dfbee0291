"""An encoder of texts that needs no model: a bag of words, hashed."""

from __future__ import annotations

import re
import zlib

import numpy as np


class HashedText:
    """Count a text's words in ``width`` columns, in that of each word's checksum.

    A row is divided by its length, so that long texts weigh no more than short ones.
    """

    def __init__(self, width: int) -> None:
        self.width = width

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return float32 [texts, width]."""
        rows = np.zeros((len(texts), self.width), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"[a-z]+", text.lower()):
                row[zlib.crc32(word.encode()) % self.width] += 1
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1)
