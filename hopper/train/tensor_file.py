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
from typing import Any, BinaryIO, Final

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hopper.errors import RequestError
from hopper.hetero.row_records import PickedRows
from hopper.whole_files import read_non_finite, replacing, to_json

PLACES: Final = ".places"
_VALUES_AT_ONCE: Final = 1 << 22
_BYTES_AT_ONCE: Final = 1 << 22
_NO_CHECKSUM: Final = "0" * 32
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
    tensors: Mapping[str, Tensor | PickedRows],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write tensors, with facts about them as JSON.

    An older file is replaced only once the new one is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        write_tensors(file, tensors, facts)


def write_tensors(
    file: BinaryIO,
    tensors: Mapping[str, Tensor | PickedRows],
    facts: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Write tensors, with facts about them as JSON, to an empty file.

    Picked rows become two tensors: the rows, and their row numbers under the same name followed by
    :data:`PLACES`.

    The safetensors library copies all tensors before it writes any. This function copies a piece at
    a time, so that tables may be larger than memory.
    """
    metadata = {"facts": to_json(facts), "checksum": _NO_CHECKSUM}
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    written = dict(tensors)
    for name, value in tensors.items():
        if isinstance(value, PickedRows):
            written[f"{name}{PLACES}"] = value.places
    for name, value in written.items():
        start, end = end, end + value.shape.numel() * value.dtype.itemsize
        header[name] = {
            "dtype": _FORMAT_NAMES[value.dtype],
            "shape": list(value.shape),
            "data_offsets": [start, end],
        }
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    start_of_file = struct.pack("<Q", len(words)) + words
    digest = xxhash.xxh3_128(start_of_file)
    file.write(start_of_file)
    for value in written.values():
        rows = value.reshape(1) if isinstance(value, Tensor) and not value.dim() else value
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
    """Compare a file of :func:`save_tensors` with its checksum, unless it has passed already.

    Raises
    ------
    RequestError: the file is missing, altered, or has no checksum.
    """
    if not path.is_file():
        raise RequestError(f"{path}: no such file")
    status = path.stat()
    mark = (status.st_ino, status.st_size, status.st_mtime_ns)
    if _checked.get(path) == mark:
        return
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        words = file.read(size) if size <= status.st_size else b""
        place = words.find(_CHECKSUM_FIELD) + len(_CHECKSUM_FIELD)
        if len(words) < size or place < len(_CHECKSUM_FIELD):
            raise RequestError(f"{path}: altered since it was written, or written without checksum")
        checksum = words[place : place + len(_NO_CHECKSUM)]
        blank = words[:place] + _NO_CHECKSUM.encode() + words[place + len(_NO_CHECKSUM) :]
        digest = xxhash.xxh3_128(struct.pack("<Q", size) + blank)
        while piece := file.read(_BYTES_AT_ONCE):
            digest.update(piece)
    if checksum != digest.hexdigest().encode():
        raise RequestError(
            f"{path}: altered since it was written: its checksum is of other content"
        )
    _checked[path] = mark


def fill_tensors(state: Mapping[str, Tensor], path: Path, *, partly: bool = False) -> None:
    """Fill tensors in place from a file, a piece at a time.

    Parameters
    ----------
    partly: whether the file may lack some tensors.

    Raises
    ------
    RequestError: the file is missing, altered or of another model.
    """
    with _open(path) as file, torch.no_grad():
        all_names = set(file.keys())
        names = {name for name in all_names if not name.endswith(PLACES)}
        if names - state.keys() or (state.keys() - names and not partly):
            raise RequestError(
                f"{path}: of another model: has {sorted(names)}, expected {sorted(state)}"
            )
        for name in sorted(names):
            target, stored = state[name], file.get_slice(name)
            shape, places = list(target.shape), None
            if f"{name}{PLACES}" in all_names:
                places = file.get_tensor(f"{name}{PLACES}").to(target.device)
                shape[0] = len(places)
            if shape != stored.get_shape():
                raise RequestError(
                    f"{path}: {name}: expected shape {tuple(shape)}, "
                    f"found {tuple(stored.get_shape())}"
                )
            if target.dim() == 0:
                target.copy_(file.get_tensor(name))
                continue
            rows = _rows_at_once(torch.Size(shape))
            for start in range(0, shape[0], rows):
                chunk = slice(start, start + rows)
                if places is None:
                    target[chunk] = stored[chunk]
                else:
                    target.index_copy_(0, places[chunk], stored[chunk].to(target.device))


def _rows_at_once(shape: torch.Size) -> int:
    return max(1, _VALUES_AT_ONCE * shape[0] // max(1, shape.numel()))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a file, in host memory.

    Raises
    ------
    RequestError: the file is missing or altered.
    """
    with _open(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def tensor_names(path: Path) -> set[str]:
    """Return the names of a file's tensors.

    Raises
    ------
    RequestError: the file is missing or altered.
    """
    with _open(path) as file:
        return set(file.keys())


def read_tensor(path: Path, name: str) -> Tensor:
    """Return one tensor of a file, in host memory.

    Raises
    ------
    RequestError: the file is missing or altered, or lacks the tensor.
    """
    with _open(path) as file:
        tensor: Tensor = file.get_tensor(name)
        return tensor


def read_pieces(path: Path, names: Sequence[str]) -> Iterator[list[Tensor]]:
    """Read tensors with equal numbers of rows, some rows at a time, into host memory.

    Raises
    ------
    RequestError: the file is missing or altered, or lacks one of the tensors.
    """
    with _open(path) as file:
        stored = [file.get_slice(name) for name in names]
        shapes = [torch.Size(tensor.get_shape()) for tensor in stored]
        step = min(_rows_at_once(shape) for shape in shapes)
        for start in range(0, shapes[0][0], step):
            yield [tensor[start : start + step] for tensor in stored]


def read_facts(path: Path) -> dict[str, Any]:
    """Return the facts in a file of tensors.

    Raises
    ------
    RequestError: the file is missing or altered.
    """
    with _open(path) as file:
        facts = dict(json.loads((file.metadata() or {})["facts"]))
    if "progress" in facts:
        # Only here are such words numbers: a category of a column may be called "nan" too.
        facts["progress"] = read_non_finite(facts["progress"])
    return facts


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file of tensors that passes its checksum; turn the library's errors into our own."""
    check_file(path)
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise RequestError(f"{path}: not a file that Hopper wrote: {error}") from error
