"""Import in a process of its own: ``python -m hopper.graph.importers.apart FOLDER PARENT``.

Libraries that read binary formats in C++ may end their process on a damaged file, and take what
their allocator gives them. In a process of its own the first becomes an error with a text, and
neither touches the caller.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from cache_server.parent import end_with_parent
from hopper.errors import GraphError, HopperError, RequestError
from hopper.graph.importers.convert import ImportOptions
from hopper.graph.importers.random_split import RandomSplit
from hopper.graph.publish import remove_unfinished
from hopper.scratch import scratch_folder

_REQUEST, _ANSWER = "request.json", "answer.json"
_ERRORS: Final = {kind.__name__: kind for kind in (GraphError, RequestError)}


def import_apart(request: dict[str, Any], out: Path, options: ImportOptions) -> list[str]:
    """Do what ``import_graph`` does, in another process.

    Parameters
    ----------
    request: the other arguments of ``import_graph``, by name.

    Raises
    ------
    GraphError, RequestError: as there; GraphError also where the process did not end well.
    """
    with scratch_folder("hopper-import-") as folder:
        content = request | {"out": str(out.absolute()), "options": asdict(options)}
        (folder / _REQUEST).write_text(json.dumps(content))
        try:
            ended = subprocess.run(
                [sys.executable, "-P", "-m", __name__, str(folder), str(os.getpid())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        finally:
            remove_unfinished(out)
        answer = folder / _ANSWER
        if not answer.exists():
            raise GraphError(f"{request['source']}: {_explain_end(ended)}")
        told = json.loads(answer.read_text())
    if "error" in told:
        raise _ERRORS[told["error"]](told["text"])
    return [str(note) for note in told["notes"]]


def _explain_end(ended: subprocess.CompletedProcess[bytes]) -> str:
    code = ended.returncode
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        words = ended.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        how = f"ended with exit code {code}: {words[-1]:.300}"
    return f"the process that read it {how}; the file is damaged, or memory ran out"


def _environment() -> dict[str, str]:
    # The child must find this very package, installed or not.
    paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def main(arguments: list[str]) -> int:
    """Carry out the request that lies in a folder, and put the answer there."""
    from hopper.graph.importers import import_here

    folder = Path(arguments[0])
    end_with_parent(int(arguments[1]))
    request = json.loads((folder / _REQUEST).read_text())
    options = request.pop("options")
    split = options.pop("split")
    answer: dict[str, Any]
    try:
        chosen = ImportOptions(**options, split=None if split is None else RandomSplit(**split))
        answer = {"notes": import_here(**request, options=chosen)}
    except HopperError as error:
        kind = GraphError if isinstance(error, GraphError) else RequestError
        answer = {"error": kind.__name__, "text": str(error)}
    unfinished = folder / f"{_ANSWER}.unfinished"
    unfinished.write_text(json.dumps(answer))
    unfinished.replace(folder / _ANSWER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
