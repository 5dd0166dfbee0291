"""A headless Chromium, driven through its DevTools protocol over two pipes: no package needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT = 60.0


def browser_path() -> str | None:
    """Return the path of a Chromium or Chrome, or None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class HeadlessBrowser:
    """One page. Every wait has a deadline; leaving ends the browser and all its processes."""

    def __init__(self, path: str, profile: Path) -> None:
        # Above 10, so that none of them is one of the two numbers that the browser expects.
        (browser_in, self._to), (self._from, browser_out) = _pipe(), _pipe()
        switches = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--remote-debugging-pipe", "--force-color-profile=srgb",
            "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{browser_in} 4>&{browser_out}', path, *switches],
            pass_fds=(browser_in, browser_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(browser_in)
        os.close(browser_out)
        self._unread = b""
        self._number = 0
        self._session = ""
        self.complaints: list[str] = []
        """errors and warnings on the console, uncaught exceptions, refused resources"""
        self.requests: list[str] = []

    def __enter__(self) -> HeadlessBrowser:
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
        if error is None:
            assert self._process.returncode == 0, self._process.returncode

    def end(self) -> None:
        """Close the pipe, which a browser takes as a request to leave; kill what stays."""
        os.close(self._to)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            os.close(self._from)

    def open(self, path: Path, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file at a width in CSS pixels and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
            mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        address = path.absolute().as_uri()
        self.call("Page.navigate", url=address)
        deadline = time.monotonic() + LIMIT
        while self.run("[location.href, document.readyState]") != [address, "complete"]:
            assert time.monotonic() < deadline, f"{path} did not load within {LIMIT:g} s"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                          awaitPromise=True)  # fmt: skip
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def move_to(self, x: float, y: float) -> None:
        """Move the pointer."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path: Path) -> None:
        """Write the whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        screenshot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(screenshot["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol and return its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + LIMIT
        while True:
            answer = self._next(method, deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self, method: str, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            with selectors.DefaultSelector() as selector:
                selector.register(self._from, selectors.EVENT_READ)
                ready = selector.select(max(0.0, deadline - time.monotonic()))
            assert ready, f"the browser did not answer {method} within {LIMIT:g} s"
            read = os.read(self._from, 1 << 16)
            assert read, f"the browser ended during {method}"
            self._unread += read
        text, self._unread = self._unread.split(b"\0", 1)
        message: dict[str, Any] = json.loads(text)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, numbered from 10 on and not inherited unless passed."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high[0], high[1]
