"""What a run has learned: saved at its end, and loaded to begin another run or to predict."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torch import Tensor, nn

from hopper.cluster.cluster import Cluster
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.hetero.learnable import IDS, TableShare
from hopper.train.results import learned_rows_file
from hopper.train.run_result import RunResult, check_encodings
from hopper.train.tensor_file import fill_tensors, read_pieces, save_tensors


def save_learned_rows(run_dir: Path, cluster: Cluster, learnable: Iterable[TableShare]) -> None:
    """Write one rank's learnable rows at the end of a run, with their original ids."""
    results: dict[str, Tensor] = {}
    for table in learnable:
        results |= table.result()
    if results:
        save_tensors(learned_rows_file(run_dir, cluster.rank), results)


def warm_start(
    request: Request, models: Iterable[nn.Module], learnable: Iterable[TableShare]
) -> None:
    """Load models and this rank's learnable rows from the run that ``train.init_from`` names. Rows
    of nodes that this run did not have stay as they are."""
    folder = request.config.train.init_from
    if not folder:
        return
    try:
        run = RunResult.open(folder)
        check_encodings(run, request)
        for model in models:
            fill_tensors(model.state_dict(), run.model_file)
        restore_rows(run, learnable)
    except RequestError as error:
        raise RequestError(f"train.init_from: {error}") from error


def restore_rows(run: RunResult, learnable: Iterable[TableShare]) -> dict[str, int]:
    """Load this rank's learnable rows from the end of a run; return, by table, how many of them the
    run does not have."""
    missing = {}
    for table in learnable:
        missing[table.name] = table.owned_ids().size
        for rank in range(run.ranks):
            file = learned_rows_file(run.run_dir, rank)
            for ids, rows in read_pieces(file, [f"{table.name}{IDS}", table.name]):
                missing[table.name] -= table.fill(ids.numpy(), rows)
        table.finish_restore()
    return missing
