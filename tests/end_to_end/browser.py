"""A headless Chromium, driven over its debugging protocol: open a page, wait for words, take a picture."""

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.end_to_end.services import until

TEXT = "document.body ? document.body.innerText + ' ' + document.title : ''"


class Browser:
    """One tab."""

    def __init__(self, socket: Any, pictures: Path) -> None:
        self._socket = socket
        self._number = 0
        self.pictures = pictures

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """Send a command of the protocol and return its result."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(timeout=240))).get("id") != self._number:
            pass
        return dict(answer.get("result", {}))

    def evaluate(self, script: str) -> Any:
        """The value of a script in the page."""
        return self.ask("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def open(self, url: str, *words: str, seconds: float = 240) -> str:
        """Open a page and wait until it shows all the words; its text."""
        self.ask("Page.navigate", url="about:blank")  # or another #fragment would not be loaded
        self.ask("Page.navigate", url=url)
        return self.wait_for(*words, seconds=seconds)

    def wait_for(self, *words: str, seconds: float = 240) -> str:
        """Wait until the page shows all the words; its text."""

        def shown() -> str:
            text = str(self.evaluate(TEXT) or "")
            return text if all(word in text for word in words) else ""

        try:
            return until(shown, f"{words} on the page", seconds)
        except AssertionError as error:
            self.picture("failed")
            raise AssertionError(f"{error}; it shows: {self.evaluate(TEXT)}") from None

    def picture(self, name: str) -> Path:
        """Save what is seen as a PNG."""
        path = self.pictures / f"{name}.png"
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))
        return path


@contextmanager
def chromium(place: Path, pictures: Path) -> Iterator[Browser]:
    """A browser with an empty profile, for the length of the block."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium; on Debian: apt-get install chromium")
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += [f"--user-data-dir={place}/profile", "--remote-debugging-port=0", "--window-size=1500,1100"]
    process = subprocess.Popen(
        [program, *options, "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(place),
    )
    try:
        page = until(lambda: _page(place / "profile"), "Chromium")
        with connect(page, open_timeout=240, max_size=None, ping_interval=None) as socket:
            yield Browser(socket, pictures)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(120)
        process.kill()
        process.wait()


def _page(profile: Path) -> str:
    """Address of the first tab's debugging socket; "" as long as there is none."""
    try:
        port = (profile / "DevToolsActivePort").read_text().split()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30) as answer:
            found = [each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page"]
    except (OSError, IndexError):
        return ""
    return found[0] if found else ""


def _environment(place: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(place)}
