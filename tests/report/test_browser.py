"""The page in a browser; ``scripts/setup-browser`` installs one."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from credo import report
from credo.report.page import Diagnostics, Page, to_html

from . import cases

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
    "--enable-logging=stderr",
    "--hide-scrollbars",
)
PHONE, DESKTOP = 400, 1200

# The page in a frame of the given width, because a window cannot be narrower than 500 pixels; scripts can read a frame
# from srcdoc.
MEASURE = """<!DOCTYPE html><body style="margin: 0">
<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{page}"></iframe>
<pre id="measured"></pre>
<script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  for (const details of page.querySelectorAll("details")) details.open = true;
  const images = [...page.images];
  const escaped = [...page.querySelectorAll("main *")].filter(
    (e) => !e.closest(".scroll") && e.getBoundingClientRect().right > root.clientWidth + 0.5);
  document.getElementById("measured").textContent = [
    root.clientWidth, root.scrollWidth, images.length,
    images.filter((i) => i.naturalWidth > 0).length, escaped.map((e) => e.tagName).join(" "),
  ].join("|");
}};
</script>"""

needs_browser = pytest.mark.skipif(
    BROWSER is None, reason="no chromium, chromium-browser or google-chrome: scripts/setup-browser installs one"
)

PAGES: dict[str, Callable[[], str]] = {
    "numbers": lambda: report.render(cases.regressor(), *cases.held_out("amount")),
    "classes": lambda: report.render(cases.classifier(), *cases.held_out("kind")),
    "comparison": lambda: report.render_comparison(cases.comparison()),
}


def browse(page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Open ``page`` with a new profile in ``folder``."""
    assert BROWSER is not None
    command = [BROWSER, *OPTIONS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    home = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=home, check=False)
    assert done.returncode == 0, done.stderr
    return done


@needs_browser
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_the_screen_without_console_messages(name: str, tmp_path: Path) -> None:
    """On a phone and on a desktop: no overflow, all images load, and the console is empty."""
    page = html.escape(PAGES[name]())
    for width in (PHONE, DESKTOP):
        file = tmp_path / f"{width}.html"
        file.write_text(MEASURE.format(width=width, page=page), encoding="utf-8")
        done = browse(file, tmp_path, "--window-size=1300,1000", "--virtual-time-budget=5000", "--dump-dom")
        assert "CONSOLE" not in done.stderr
        found = re.search(r'<pre id="measured">(\d+)\|(\d+)\|(\d+)\|(\d+)\|(.*?)</pre>', done.stdout)
        assert found, "the page did not load"
        inner, needed, images, shown = map(int, found.groups()[:4])
        assert inner == width
        assert needed == width, f"something is {needed} pixels wide"
        assert shown == images > 0
        assert not found.group(5), f"beyond the edge: {found.group(5)}"


INJECTED = """<script>document.title += " script"</script>
<img src="x" onerror="document.title += ' handler'">
<iframe srcdoc="<script>parent.document.title += ' frame'</script>"></iframe>
<main>"""

FRAMED = """<!DOCTYPE html><body>{frames}<pre id="titles"></pre>
<script>
window.onload = () => setTimeout(() => {{
  const frames = [...document.querySelectorAll("iframe")];
  document.getElementById("titles").textContent = frames.map((f) => f.contentDocument.title).join("|");
}}, 500);
</script>"""


@needs_browser
def test_policy_blocks_injected_scripts(tmp_path: Path) -> None:
    """The policy of the page is a second defense if escaping fails."""
    page = to_html(Page("Title", [], "", Diagnostics("", []), [], [], "")).replace("<main>", INJECTED)
    without_policy = re.sub(r'<meta http-equiv="Content-Security-Policy".*?>', "", page)
    frames = "".join(f'<iframe srcdoc="{html.escape(content)}"></iframe>' for content in (page, without_policy))
    file = tmp_path / "page.html"
    file.write_text(FRAMED.format(frames=frames), encoding="utf-8")
    done = browse(file, tmp_path, "--virtual-time-budget=5000", "--dump-dom")
    found = re.search(r'<pre id="titles">(.*?)\|(.*?)</pre>', done.stdout)
    assert found, "the page did not load"
    assert found.group(1) == "Title"
    assert sorted(found.group(2).split()) == ["Title", "frame", "handler", "script"]


@needs_browser
def test_page_prints(tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    file.write_text(PAGES["classes"](), encoding="utf-8")
    browse(file, tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path / 'page.pdf'}")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 10
