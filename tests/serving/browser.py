"""A browser that tests can talk to: chromium's DevTools protocol over a pipe, without further libraries."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Browser:
    """One page in a browser with a new profile.

    Attributes:
        events: what the page reported so far, such as messages of the console and requests.
    """

    def __init__(self, folder: Path) -> None:
        assert BROWSER is not None
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def connect() -> None:
            """The browser reads from 3 and writes to 4; moved out of the way first, as these may be the ends."""
            ends = [os.dup(to_browser), os.dup(from_browser)]
            ends = [end if end > 4 else os.dup(os.dup(end)) for end in ends]
            os.dup2(ends[0], 3, inheritable=True)
            os.dup2(ends[1], 4, inheritable=True)

        self._process = subprocess.Popen(
            [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            preexec_fn=connect,
            close_fds=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(folder)},
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number, self._buffer, self._session = 0, b"", None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, url: str, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Open a page in a window of this size."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send("Emulation.setEmulatedMedia", features=scheme)
        self.send("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is."""
        done = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true: it is evaluated whenever the page changes."""
        self.run(
            f"""new Promise((resolve) => {{
              const check = () => {{ if ({condition}) {{ observer.disconnect(); resolve(true); }} }};
              const observer = new MutationObserver(check);
              const kinds = {{ subtree: true, childList: true, attributes: true, characterData: true }};
              observer.observe(document, kinds);
              check();
            }})"""
        )

    def choose_file(self, selector: str, path: Path) -> None:
        """Put a file in a file input."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(picture))

    def problems(self) -> list[str]:
        """Messages of the console, and exceptions."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"]) for event in self.events if event.get("method") in kinds]

    def requested(self) -> list[str]:
        """The addresses that the page asked for."""
        sent = (event for event in self.events if event.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 2**16)
            assert part, "the browser ended"
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
