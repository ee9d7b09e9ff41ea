"""The documentation site in a browser: no errors, the search finds words, and pages fit a phone.

The site is built without examples and API reference, which takes a minute for each language; ``CREDO_SITE`` may name a
folder with the result of ``make docs`` instead.
"""

from __future__ import annotations

import http.server
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from report.test_browser import BROWSER, OPTIONS, PHONE, needs_browser

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ("index.html", "start/table.html", "choose.html", "theory/bayes-by-backprop.html", "howto/pretrained.html")
FRAME = """<!DOCTYPE html><body style="margin: 0">
<iframe style="width: {width}px; height: 900px; border: 0" src="{page}"></iframe><pre id="measured"></pre>
<script>
document.querySelector("iframe").onload = (event) => {{
  const root = event.target.contentDocument.documentElement;
  document.getElementById("measured").textContent = root.clientWidth + "|" + root.scrollWidth;
}};
</script>"""

pytestmark = [pytest.mark.slow, needs_browser]


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address of the site, and its folder."""
    folder = Path(os.environ.get("CREDO_SITE") or tmp_path_factory.mktemp("site"))
    if "CREDO_SITE" not in os.environ:
        pytest.importorskip("sphinx_gallery")
        command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-t", "catalogues"]
        for language, target in (("en", folder), ("ko", folder / "ko")):
            trees = tmp_path_factory.mktemp(language)
            subprocess.run(
                [*command, "-d", str(trees), "-D", f"language={language}", str(DOCS), str(target)], check=True
            )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def opened(address: str, profile: Path) -> str:
    """The page at an address after its scripts have run; errors in the console are failures."""
    assert BROWSER is not None
    command = [BROWSER, *OPTIONS, f"--user-data-dir={profile}", "--virtual-time-budget=8000", "--dump-dom", address]
    environment = {**os.environ, "HOME": str(profile)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment, check=True)
    assert not re.findall(r".*(?:ERROR|WARNING):CONSOLE.*", done.stderr)
    return done.stdout


@pytest.mark.parametrize(("language", "word"), [("", "dropout"), ("ko/", "드롭아웃"), ("ko/", "드롭아웃을")])
def test_search_finds_the_page_on_dropout(language: str, word: str, site: tuple[str, Path], tmp_path: Path) -> None:
    page = opened(f"{site[0]}/{language}search.html?q={word}", tmp_path)
    results = page[page.index('id="search-results"') :]
    assert re.search(r'href="[^"]*theory/dropout\.html', results)


@pytest.mark.parametrize("language", ["", "ko/"])
@pytest.mark.parametrize("page", PAGES)
def test_pages_fit_a_phone_without_errors(page: str, language: str, site: tuple[str, Path], tmp_path: Path) -> None:
    address, folder = site
    (folder / "frame.html").write_text(FRAME.format(width=PHONE, page=f"{language}{page}"), encoding="utf-8")
    found = re.search(r'<pre id="measured">(\d+)\|(\d+)</pre>', opened(f"{address}/frame.html", tmp_path))
    (folder / "frame.html").unlink()
    assert found, "the page did not load"
    assert found.groups() == (str(PHONE), str(PHONE)), "something is wider than the screen"
