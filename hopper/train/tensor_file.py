"""Files of tensors: checkpoints, models and recorded gradients.

The format is that of safetensors. The metadata hold facts as JSON and a checksum of the whole file:
the 128-bit XXH3 of the file with zeros in place of the checksum. A file is written under a
temporary name and then renamed. It contains no code, and an altered file is not read.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hopper.errors import RequestError
from hopper.files.whole_files import read_non_finite, replacing, to_json

BEST_MODEL_FILE: Final = "best.safetensors"
_VALUES_AT_ONCE: Final = 1 << 22
_BYTES_AT_ONCE: Final = 1 << 22
_NO_CHECKSUM: Final = b"0" * 32
"""The placeholder of a file's checksum while it is computed."""
_CHECKSUM_FIELD: Final = b'"checksum": "'
_checked: dict[Path, tuple[int, int, int]] = {}
"""Files that passed their checksums, and their inode, size and time of change then."""
_FORMAT_NAMES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write tensors, with facts about them as JSON; an older file is replaced once they are whole.

    The safetensors library copies all tensors before it writes any. This function copies a piece at
    a time, so that tables may be larger than memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"facts": to_json(facts), "checksum": _NO_CHECKSUM.decode()}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, value in tensors.items():
        start, end = end, end + value.nbytes
        dtype, shape = _FORMAT_NAMES[value.dtype], list(value.shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    start_of_file = struct.pack("<Q", len(words)) + words
    digest = xxhash.xxh3_128(start_of_file)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        file.write(start_of_file)
        for value in tensors.values():
            rows = value if value.dim() else value.reshape(1)
            for chunk in rows.split(_rows_at_once(rows.shape)):
                # A tensor of one number may have any stride, and such a tensor has no byte view.
                piece = torch.empty(chunk.shape, dtype=chunk.dtype).copy_(chunk.detach())
                data = piece.view(-1).view(torch.uint8).numpy().data
                digest.update(data)
                file.write(data)
        # The facts precede the checksum. Their quotes are escaped, so the first match is the field.
        file.seek(start_of_file.index(_CHECKSUM_FIELD) + len(_CHECKSUM_FIELD))
        file.write(digest.hexdigest().encode())


def check_file(path: Path) -> None:
    """Compare a file of :func:`save_tensors` with its checksum, unless it has passed already."""
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    status = path.stat()
    mark = (status.st_ino, status.st_size, status.st_mtime_ns)
    if _checked.get(path) == mark:
        return
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        words = file.read(size) if size <= status.st_size else b""
        before, field, after = words.partition(_CHECKSUM_FIELD)
        if len(words) < size or not field:
            raise RequestError(f"{path}: altered since it was written, or written without checksum")
        checksum, rest = after[: len(_NO_CHECKSUM)], after[len(_NO_CHECKSUM) :]
        digest = xxhash.xxh3_128(struct.pack("<Q", size) + before + field + _NO_CHECKSUM + rest)
        while piece := file.read(_BYTES_AT_ONCE):
            digest.update(piece)
    if checksum != digest.hexdigest().encode():
        raise RequestError(
            f"{path}: altered since it was written: its checksum is of other content"
        )
    _checked[path] = mark


@contextmanager
def open_tensors(path: Path) -> Iterator[Any]:
    """Open a file that passes its checksum by safetensors, which maps its tensors into memory."""
    check_file(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: not a file that Hopper wrote: {error}") from error


def fill_tensors(state: Mapping[str, Tensor], path: Path) -> None:
    """Fill tensors in place from a file, which must have them and no others."""
    with open_tensors(path) as file, torch.no_grad():
        names = set(file.keys())
        if names != state.keys():
            raise RequestError(
                f"{path}: of another model: has {sorted(names)}, expected {sorted(state)}"
            )
        for name, target in state.items():
            stored = file.get_tensor(name)
            if target.shape != stored.shape:
                raise RequestError(
                    f"{path}: {name}: expected shape {tuple(target.shape)}, "
                    f"found {tuple(stored.shape)}"
                )
            target.copy_(stored)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, in host memory."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def read_pieces(path: Path, names: Sequence[str]) -> Iterator[list[Tensor]]:
    """Read tensors with equal numbers of rows, some rows at a time."""
    with open_tensors(path) as file:
        stored = [file.get_tensor(name) for name in names]
        size = min(_rows_at_once(tensor.shape) for tensor in stored)
        yield from map(list, zip(*(tensor.split(size) for tensor in stored), strict=True))


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts in a file of tensors."""
    with open_tensors(path) as file:
        facts = dict(json.loads((file.metadata() or {})["facts"]))
    if "progress" in facts:
        # Only here are such words numbers: a category of a column may be called "nan" too.
        facts["progress"] = read_non_finite(facts["progress"])
    return facts


def _rows_at_once(shape: torch.Size) -> int:
    return max(1, _VALUES_AT_ONCE * shape[0] // max(1, shape.numel()))
