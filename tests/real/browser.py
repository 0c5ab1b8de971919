"""A real browser without a screen, driven over a pipe by the DevTools protocol.

`python -m tests.real.browser PAGE.html OUT.png` makes a picture of a replay's timelines.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_PATIENCE_S = 120.0
# Root may not use the sandbox, and a container has little shared memory. Nothing is asked of the
# network: no updates, no lists, no search engine.
_OPTIONS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
)
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


class NoBrowserError(RuntimeError):
    """There is none on this machine."""


@dataclass(slots=True)
class Page:
    """One tab. `console` has what it complained of, `asked` every address that it wanted."""

    _process: subprocess.Popen[bytes]
    _to: int
    _from: int
    console: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    _session: str = ""
    _last: int = 0
    _rest: bytes = b""
    _loaded: int = 0

    def open(self, file: Path) -> None:
        """Load a file and wait until that is done."""
        before = self._loaded
        self.call("Page.navigate", url=file.resolve().as_uri())
        self._until(lambda: self._loaded > before, f"{file} to be loaded")

    def visit(self, address: str) -> None:
        """Load what a service of ours has at an address, and wait until that is done."""
        before = self._loaded
        self.call("Page.navigate", url=address)
        self._until(lambda: self._loaded > before, f"{address} to be loaded")

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Wait until the page has loaded itself anew because of what is done meanwhile."""
        before = self._loaded
        yield
        self._until(lambda: self._loaded > before, "the page to load itself anew")

    def await_js(self, text: str) -> Any:
        """Wait until an expression is worth something, and return that."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            if found := self.js(text):
                return found
            self.drawn()
        raise AssertionError(f"it never came: {text}; the page says {self.js('document.body.innerText')!r}")

    def size(self, width: int, height: int, *, dark: bool = False, ratio: float = 1.0) -> None:
        """Give the window a size, and the reader a liking for dark pages."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=ratio,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def js(self, text: str) -> Any:
        """What an expression is worth; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=text, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise AssertionError(f"{text}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def drawn(self) -> None:
        """Wait until what was asked for is on the screen."""
        self.js("new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => f(1))))")

    def mouse(self, what: str, x: float, y: float, **more: float | str) -> None:
        """Let the mouse do what the protocol calls `mouseMoved`, `mousePressed` and so on."""
        self.call("Input.dispatchMouseEvent", type=what, x=x, y=y, **more)

    def key(self, key: str) -> None:
        """Press a key and let it go."""
        for what in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=what, key=key, code=key)

    def picture(self, out: Path, *, whole: bool = True) -> None:
        """Write a PNG of the page, all of it or what the window shows."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        out.write_bytes(base64.b64decode(data))

    def printed(self, out: Path) -> None:
        """Write the page as a PDF, as it would be printed."""
        out.write_bytes(base64.b64decode(self.call("Page.printToPDF")["data"]))

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser for one thing and wait for the answer."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer: dict[str, Any] = {}

        def answered() -> bool:
            return bool(answer)

        self._until(answered, method, answer)
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def attach(self) -> None:
        """Open the tab."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _until(self, done: Callable[[], bool], what: str, answer: dict[str, Any] | None = None) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not done():
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._from], [], [], left)[0]:
                raise AssertionError(f"the browser did not answer in {_PATIENCE_S:.0f} s: {what}")
            chunk = os.read(self._from, 1 << 20)
            if not chunk:
                raise AssertionError(f"the browser ended with {self._process.wait()}: {what}")
            *messages, self._rest = (self._rest + chunk).split(b"\0")
            for text in messages:
                message = json.loads(text)
                if message.get("id") == self._last and answer is not None:
                    answer.update(message)
                elif "method" in message:
                    self._heard(message["method"], message.get("params", {}))

    def _heard(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded += 1
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                self.console.append(f"{method}: {json.dumps(params)}")
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case _:
                pass


def browser() -> str:
    """The browser's program. NoBrowserError says what to do where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        raise NoBrowserError("there is no browser: run `make setup-browser` (Debian: chromium)")
    return found


def _pipe() -> tuple[int, int]:
    """The two ends of a pipe, neither of them 3 or 4."""
    low = os.pipe()
    out, into = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    return out, into


@contextmanager
def page(profile: Path) -> Iterator[Page]:
    """A tab of a fresh browser whose files lie in `profile`."""
    program = browser()
    down, to = _pipe()
    come, up = _pipe()
    # It reads from descriptor 3 and writes to 4.
    redirect = f'exec 3<&{down} 4>&{up}; exec "$@"'
    command = ["bash", "-c", redirect, "browser", program, *_OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        command,
        pass_fds=(down, up),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
        start_new_session=True,
    )
    os.close(down)
    os.close(up)
    try:
        tab = Page(process, to, come)
        tab.attach()
        yield tab
    finally:
        os.close(to)
        os.close(come)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(source: Path, out: Path) -> None:
    """Write a picture of a page, from its timelines on."""
    with tempfile.TemporaryDirectory() as profile, page(Path(profile)) as tab:
        tab.size(1200, 780)
        tab.open(source)
        tab.js("document.querySelector('.legend').scrollIntoView()")
        tab.drawn()
        tab.picture(out, whole=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
