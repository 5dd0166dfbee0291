"""Processes that something happens to: servers, and commands that are judged by what they leave."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.processes import HOPPER, in_group

ROOT = Path(__file__).resolve().parents[2]


class Wrong(Exception):
    """Something did not end as it has to. The text says what."""


@contextmanager
def serving(
    partitioned: Path, index: int, port_file: Path, *words: str, listen: str = "127.0.0.1:0"
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a feature server. Yield its process, whose stderr is a pipe, and its address once it
    listens, and kill it afterwards. Raise RuntimeError if it ends before."""
    port_file.unlink(missing_ok=True)
    process = subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-m",
            "cache_server",
            str(partitioned),
            "--server",
            str(index),
            "--listen",
            listen,
            "--port-file",
            str(port_file),
            "--die-with-parent",
            str(os.getpid()),
            *words,
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C must reach only the command that started the server.
        start_new_session=True,
    )
    try:
        while not port_file.exists():
            if process.poll() is not None:
                raise RuntimeError(f"a feature server ended before it served: {process.args!r}")
            time.sleep(0.02)
        yield process, str(json.loads(port_file.read_text())["address"])
    finally:
        process.kill()
        process.communicate()
        port_file.unlink(missing_ok=True)


@contextmanager
def own_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a small file system at a folder. Needs root."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


class Watched:
    """A ``hopper`` command in a folder of its own, whose processes its folder for temporary files
    tells. The log and that folder lie beside it, on another disk if it has its own."""

    process: subprocess.Popen[bytes]

    def __init__(self, folder: Path, group: Path | None = None) -> None:
        self.folder, self.group = folder, group
        self.log = folder.with_suffix(".log")
        self.temporary = folder.with_suffix(".tmp")

    @contextmanager
    def folders(self, disk: str = "") -> Iterator[None]:
        """Make its folders, with a disk of some size of its own; remove them afterwards."""
        with ExitStack() as stack:
            for folder in (self.folder, self.temporary):
                folder.mkdir()
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
            if disk:
                stack.enter_context(own_disk(self.folder, disk))
            yield

    def start(self, *words: str) -> None:
        """Start the command in a group of its own. Its output is appended to the log."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                in_group([*HOPPER, *words], self.group), stdout=subprocess.DEVNULL, stderr=output,
                cwd=ROOT, start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)},
            )  # fmt: skip

    def members(self) -> list[psutil.Process]:
        """Return every process that lives, except the one that was started."""
        members = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_member = process.environ().get("TMPDIR") == str(self.temporary)
                gone = process.status() == psutil.STATUS_ZOMBIE
                if is_member and not gone and process.pid != self.process.pid:
                    members.append(process)
        return members

    def await_end(self, limit: float) -> int:
        """Wait for the process that was started. Return its exit code."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise Wrong(f"did not end within {limit:.0f} s: {self.text[-300:]}") from None

    def await_nothing_left(self, limit: float) -> None:
        """Wait for all other processes."""
        deadline = time.monotonic() + limit
        while left := self.members():
            if time.monotonic() > deadline:
                with suppress(psutil.Error):
                    raise Wrong(f"lives {limit:.0f} s longer: {left[0].cmdline()}")
            time.sleep(0.02)

    def check_files(self, but: Collection[str] = ()) -> None:
        """Refuse temporary and unfinished files, and a traceback."""
        left = [path.name for path in self.folder.rglob("*.unfinished")]
        left += [path.name for path in self.temporary.iterdir() if path.name not in but]
        if left:
            raise Wrong(f"files are left: {left}")
        if "Traceback" in self.text:
            raise Wrong(f"a traceback: {self.text[self.text.index('Traceback') :][-600:]}")

    @property
    def text(self) -> str:
        """What was written to the log."""
        return self.log.read_text(errors="replace")

    @property
    def last_line(self) -> str:
        """The last error in the log, or its last line."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        # What to do next may stand below the error.
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or [""])[-1][-300:]

    def end(self) -> None:
        """Kill all processes."""
        for process in self.members():
            with suppress(psutil.Error):
                process.kill()
        self.process.kill()
        self.process.wait()
