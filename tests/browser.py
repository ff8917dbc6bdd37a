"""A real browser, driven through its debugging pipe; nothing but Chromium is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 60  # seconds


def find_browser() -> str | None:
    """Where Chromium or Chrome is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page in a headless browser, with real keys, pointer and touch."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.writing = os.pipe()
        self.reading, from_browser = os.pipe()
        command = [
            program, "--headless", "--no-sandbox", "--disable-gpu",
            "--disable-dev-shm-usage", "--remote-debugging-pipe",
            f"--user-data-dir={self.profile.name}", "about:blank",
        ]  # fmt: skip
        # The browser reads commands from descriptor 3 and answers on 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self.process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.count, self.buffer, self.session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        attached = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command and wait for the answer."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.buffer:
            left = until - time.monotonic()
            ready, _, _ = select.select([self.reading], [], [], max(0, left))
            assert ready, "the browser does not answer"
            piece = os.read(self.reading, 2**16)
            assert piece, "the browser has ended"
            self.buffer += piece
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def open(
        self, page: Path, ready: str, width: int = 1100, height: int = 900
    ) -> None:
        """Open a page from its file, and wait until an expression is true."""
        self.size(width, height)
        self.send("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + PATIENCE
        while not self.value(ready):
            assert time.monotonic() < until, f"{ready} does not become true"
            time.sleep(0.05)

    def size(self, width: int, height: int) -> None:
        """Set the window's size; narrow ones are phones."""
        phone = width < 500
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)

    def value(self, expression: str) -> Any:
        """What an expression is in the page."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key and let it go."""
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        codes |= {"Home": 36, "Tab": 9}
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, code=key, modifiers=8 * shift,
                windowsVirtualKeyCode=codes[key],
            )  # fmt: skip

    def move_mouse(self, x: float, y: float) -> None:
        """Move the mouse without a button."""
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def drag_finger(self, *places: tuple[float, float]) -> None:
        """Put a finger down, move it, and take it away."""
        for number, (x, y) in enumerate(places):
            kind = "touchMove" if number else "touchStart"
            points = [{"x": x, "y": y}]
            self.send("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        self.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def screenshot(self, path: Path, whole: bool = True) -> None:
        """Take a picture of the page."""
        taken = self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole
        )
        path.write_bytes(base64.b64decode(taken["data"]))

    def requests(self) -> list[str]:
        """Addresses the page has asked for."""
        self.value("0")  # gathers events that are under way
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Errors in the page's scripts, and the browser's own."""

        def is_error(event: dict[str, Any]) -> bool:
            if event["method"] == "Log.entryAdded":
                return event["params"]["entry"]["level"] == "error"
            return event["method"] == "Runtime.exceptionThrown"

        return [json.dumps(event) for event in self.events if is_error(event)]

    def close(self) -> None:
        """End the browser."""
        os.close(self.writing)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.reading)
        self.profile.cleanup()
