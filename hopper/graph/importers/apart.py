"""Import in a process of its own: ``python -m hopper.graph.importers.apart FOLDER PARENT
REPORTS``.

Libraries that read binary formats in C++ may crash on a damaged file, or take all memory. In a
process of its own, that does not end the caller, which raises an error with a text instead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from cache_server.process import end_with_parent
from hopper.errors import GraphError, HopperError, RequestError
from hopper.graph.importers.convert import ImportOptions
from hopper.graph.importers.random_split import RandomSplit
from hopper.graph.importers.workspace import Watcher
from hopper.graph.publish import remove_unfinished
from hopper.scratch import scratch_folder

_REQUEST, _ANSWER = "request.json", "answer.json"
_ERRORS: Final = {kind.__name__: kind for kind in (GraphError, RequestError)}


def import_apart(
    request: dict[str, Any], out: Path, options: ImportOptions, watcher: Watcher
) -> list[str]:
    """Do what ``import_graph`` does, in another process.

    Parameters
    ----------
    request: the other arguments of ``import_graph``, by name.

    Raises
    ------
    GraphError: as ``import_graph``, or the process crashed.
    RequestError: as ``import_graph``.
    """
    with scratch_folder("hopper-import-") as folder:
        content = request | {"out": str(out.absolute()), "options": asdict(options)}
        (folder / _REQUEST).write_text(json.dumps(content))
        try:
            ended = _run([str(folder), str(os.getpid())], watcher)
        finally:
            remove_unfinished(out)
        answer = folder / _ANSWER
        if not answer.exists():
            raise GraphError(f"{request['source']}: {_explain_end(ended)}")
        result = json.loads(answer.read_text())
    if "error" in result:
        raise _ERRORS[result["error"]](result["text"])
    return [str(note) for note in result["notes"]]


def _run(arguments: list[str], watcher: Watcher) -> subprocess.CompletedProcess[bytes]:
    """Run this module with some arguments, and pass its reports on to ``watcher`` meanwhile."""
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as reports:
        reader = threading.Thread(target=_pass_on, args=(reports, watcher))
        reader.start()
        try:
            return subprocess.run(
                [sys.executable, "-P", "-m", __name__, *arguments, str(writing)],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[writing],
                check=False,
            )
        finally:
            os.close(writing)
            reader.join()


def _pass_on(reports: Iterable[str], watcher: Watcher) -> None:
    calls: dict[str, Callable[..., None]] = {
        "tell": watcher.tell,
        "begin": watcher.progress.begin,
        "advance": watcher.progress.advance,
        "end": watcher.progress.end,
    }
    for line in reports:
        # The last line of a process that was killed may be cut off.
        with suppress(ValueError):
            name, *values = json.loads(line)
            calls[name](*values)


class _Reports:
    """Sends progress to the process that shows it."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def tell(self, text: str) -> None:
        """Send a line of text."""
        self._send("tell", text)

    def begin(self, phase: str, total: int | None) -> None:
        """Send the start of a phase."""
        self._send("begin", phase, total)

    def advance(self, units: int) -> None:
        """Send that more units are done."""
        self._send("advance", units)

    def end(self, seconds: float) -> None:
        """Send the end of a phase."""
        self._send("end", seconds)

    def _send(self, *report: object) -> None:
        self._stream.write(json.dumps(report) + "\n")
        self._stream.flush()


def _explain_end(ended: subprocess.CompletedProcess[bytes]) -> str:
    code = ended.returncode
    lines = ended.stdout.decode(errors="replace").strip().splitlines() or ["it said nothing"]
    if code >= 0 and lines[-1].startswith("OSError: "):
        return lines[-1].removeprefix("OSError: ")
    if code < 0:
        how = f"was ended by {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}: {lines[-1]:.300}"
    return f"the process that read it {how}; the file is damaged, or memory ran out"


def _environment() -> dict[str, str]:
    # The child must import this package, whether it is installed or not.
    paths = [str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def main(arguments: list[str]) -> int:
    """Run the import that a request file asks for, and write its result beside it."""
    from hopper.graph.importers import import_here

    folder = Path(arguments[0])
    end_with_parent(int(arguments[1]), signal.SIGKILL)
    request = json.loads((folder / _REQUEST).read_text())
    options = request.pop("options")
    split = options.pop("split")
    answer: dict[str, Any]
    try:
        import_options = ImportOptions(
            **options, split=None if split is None else RandomSplit(**split)
        )
        with open(int(arguments[2]), "w", encoding="utf-8") as stream:
            reports = _Reports(stream)
            watcher = Watcher(reports, reports.tell)
            answer = {"notes": import_here(**request, options=import_options, watcher=watcher)}
    except HopperError as error:
        error_class = GraphError if isinstance(error, GraphError) else RequestError
        answer = {"error": error_class.__name__, "text": str(error)}
    unfinished = folder / f"{_ANSWER}.unfinished"
    unfinished.write_text(json.dumps(answer))
    unfinished.replace(folder / _ANSWER)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
