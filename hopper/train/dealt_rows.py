"""Learnable rows of a checkpoint that other ranks have written, dealt out anew."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from torch import Tensor

from hopper.hetero.learnable import LearnableRows, TableShare
from hopper.train.checkpoint_files import CheckpointFiles
from hopper.train.tensor_file import PLACES, read_facts, read_pieces, read_tensor, tensor_names

IDS_OF: Final = "ids."
"""what precedes a table's name in the name of its rows' original ids"""
_BY_ROW: Final = ("records.", "kept.")
_OF_ALL: Final = "optimizer."


def chain_of_files(files: CheckpointFiles, rank: int, step: int) -> list[Path]:
    """The files that a rank's rows of a step are in: one of all rows, then those of what changed.

    Raises
    ------
    RequestError: the newest is missing or altered.
    """
    chain = read_facts(files.learnable(rank, step))["progress"]["chain"]
    return [files.learnable(rank, each) for each in chain]


def deal_rows(
    files: CheckpointFiles, ranks: int, step: int, learnable: LearnableRows, with_kept: bool
) -> None:
    """Fill this rank's rows from the files of all ranks that wrote them.

    Parameters
    ----------
    with_kept: as of :meth:`TableShare.state`.

    Raises
    ------
    RequestError: a file is missing or altered.
    """
    for table in learnable:
        state = table.state(with_kept)
        for rank in range(ranks):
            chain = chain_of_files(files, rank, step)
            if state:
                _fill(table, state, chain)
        table.finish_restore()


def _fill(table: TableShare, state: dict[str, Tensor], chain: list[Path]) -> None:
    originals = read_tensor(chain[0], f"{IDS_OF}{table.name}")
    for file in chain:
        names = tensor_names(file)
        for name, target in state.items():
            if name.startswith(_OF_ALL):
                # The same on every rank, and in the newest file as it is now.
                target.copy_(read_tensor(file, name))
            elif name.startswith(_BY_ROW) and name in names:
                picked = f"{name}{PLACES}" in names
                whose = f"{name}{PLACES}" if picked else f"{IDS_OF}{table.name}"
                for rows, owners in read_pieces(file, [name, whose]):
                    ids = originals[owners] if picked else owners
                    places, own = table.find(ids.numpy())
                    target.index_copy_(0, places.to(target.device), rows[own].to(target.device))
