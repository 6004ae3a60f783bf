"""Chromium without a window: what a page asks for, what it complains about, and what axe-core finds in it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
AXE = Path(os.environ.get("AXE_CORE", "node_modules/axe-core/axe.min.js"))
RUN_AXE = """
<pre id="axe-result"></pre>
<script>axe.run(document, {resultTypes: ["violations"]}).then(found => {
  document.getElementById("axe-result").textContent = "AXE" + JSON.stringify(found.violations.map(v =>
    [v.id, v.impact, v.nodes.slice(0, 3).map(n => n.target.join(" "))])) + "END";
});</script>
"""


def chromium(
    page: Path, place: Path, *arguments: str, width: int = 1280, dark: bool = False
) -> subprocess.CompletedProcess:
    """Load a page; no name outside resolves."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={place / 'profile'}",
        f"--window-size={width},2000", "--virtual-time-budget=8000", "--enable-logging=stderr", "--log-level=0",
        "--host-resolver-rules=MAP * ~NOTFOUND", *(["--force-dark-mode"] if dark else []), *arguments, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)


def requests_of(page: Path, place: Path) -> set[str]:
    """Hosts that loading the page asks for, from Chromium's own log of the network, less those it asks for anyway."""
    blank = place / "blank.html"
    blank.write_text("<!DOCTYPE html><title>nothing</title>")
    return _hosts(page, place) - _hosts(blank, place)


def _hosts(page: Path, place: Path) -> set[str]:
    log = place / "net.json"
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    chromium(page, place, f"--log-net-log={log}", "--dump-dom", *quiet)
    urls = [urlsplit(url) for url in re.findall(r'"url":"([^"]+)"', log.read_text(errors="replace"))]
    browsers_own = ("google.com", "googleapis.com", "gvt1.com")
    hosts = {url.hostname for url in urls if url.scheme in ("http", "https", "ws", "wss") and url.hostname}
    return {host for host in hosts if not host.endswith(browsers_own)}


def accessibility_problems(page: Path, place: Path, width: int = 1280, dark: bool = False) -> list:
    """What axe-core has against a page: rule, impact, places."""
    if not AXE.is_file():
        pytest.skip(f"axe-core is not there: {AXE} (npm install axe-core, or AXE_CORE=…/axe.min.js)")
    html = re.sub(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>", "", page.read_text())
    copy = place / "axe.html"
    copy.write_text(html.replace("</body>", f"<script>{AXE.read_text()}</script>{RUN_AXE}</body>"))
    shown = chromium(copy, place, "--dump-dom", width=width, dark=dark).stdout
    found = re.search(r'id="axe-result">AXE(.*)END', shown)
    assert found, "axe-core did not finish"
    return json.loads(found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"'))


def console_errors(page: Path, place: Path, width: int = 1280) -> list[str]:
    """What the page's console complains about."""
    lines = chromium(page, place, "--dump-dom", width=width).stderr.splitlines()
    return [line for line in lines if ":CONSOLE" in line]
