"""The page in a browser: sliders move the band, a table comes back with error bars, and words are only ever text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from .browser import BROWSER, Browser
from .live import TARGET, WORDS, Live, running, table

pytestmark = [
    pytest.mark.extras,
    pytest.mark.skipif(
        BROWSER is None, reason="no chromium, chromium-browser or google-chrome: scripts/setup-browser installs one"
    ),
]

SHOWN = "Number(document.body.dataset.shown || 0)"
TEXT = "document.getElementById({id!r}).textContent"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path)
    yield opened
    opened.close()


def text(browser: Browser, name: str) -> str:
    return browser.run(TEXT.format(id=name))


def change(browser: Browser, name: str, value: object) -> None:
    """Set a control as a person does, and wait for the new prediction."""
    before = browser.run(SHOWN)
    browser.run(
        f"""(() => {{
          const control = document.getElementById({name!r});
          control.value = {json.dumps(value)};
          control.dispatchEvent(new Event("input", {{ bubbles: true }}));
        }})()"""
    )
    browser.until(f"{SHOWN} > {before}")


def upload(browser: Browser, path: Path) -> None:
    browser.choose_file("#file", path)
    browser.run("document.getElementById('send').click()")
    browser.until(f"!document.getElementById('send').disabled && !{TEXT.format(id='table-status')}.includes('…')")


def position(browser: Browser) -> tuple[float, float]:
    """Where the dot of the row is."""
    found = browser.run("['cx', 'cy'].map((name) => Number(document.getElementById('here').getAttribute(name)))")
    return tuple(found)


def check(browser: Browser, live: Live, width: int) -> None:
    """Nothing was reported, loaded from elsewhere, or is wider than the screen; every control has a label."""
    assert browser.problems() == []
    assert {url for url in browser.requested() if not url.startswith((live.url, "data:", "blob:", "about:"))} == set()
    assert browser.run("document.documentElement.scrollWidth") == width
    unlabeled = """[...document.querySelectorAll("input, select")].filter(
        (c) => !c.labels.length && !c.getAttribute("aria-label")).map((c) => c.outerHTML)"""
    assert browser.run(unlabeled) == []


def test_sliders_move_the_prediction_and_its_band(server: Live, browser: Browser) -> None:
    browser.open(f"{server.url}/")
    browser.until(f"{SHOWN} > 0")
    assert TARGET in text(browser, "title")
    change(browser, "cell-0", 50)
    low, left = text(browser, "prediction"), position(browser)
    change(browser, "cell-0", 190)
    high, right = text(browser, "prediction"), position(browser)
    assert low != high
    assert right[0] > left[0]
    for part in ("interval", "mean", "average", "spread"):
        assert browser.run(f"document.querySelectorAll('#curve .{part}').length") == 1
    assert text(browser, "flags") == ""
    change(browser, "cell-0", browser.run("document.getElementById('cell-0').max"))
    assert "area outside range" in text(browser, "flags")
    change(browser, "level", "0.5")
    assert "50 % from" in text(browser, "prediction")
    for j in range(1, 6):  # the effects of all other columns
        before = browser.run(SHOWN)
        browser.run(f"document.getElementById('cell-{j}').focus()")
        browser.until(f"{SHOWN} > {before}")
        assert text(browser, "row-error") == ""
    check(browser, server, 1200)


def test_words_are_never_markup(class_server: Live, browser: Browser, tmp_path: Path) -> None:
    browser.open(f"{class_server.url}/")
    browser.until(f"{SHOWN} > 0")
    assert "<b>high</b>" in text(browser, "classes")
    change(browser, "column", "place")
    change(browser, "cell-4", WORDS[1])
    path = tmp_path / "<img src=x onerror=alert(1)>.csv"
    table(5).assign(place=WORDS[1]).to_csv(path, index=False)
    upload(browser, path)
    assert text(browser, "table-error") == ""
    assert WORDS[1] in text(browser, "preview")
    assert browser.run("document.querySelectorAll('main script, main b, main img').length") == 0
    check(browser, class_server, 1200)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_table_comes_back_with_error_bars_on_a_phone(
    server: Live, browser: Browser, tmp_path: Path, dark: bool
) -> None:
    path = tmp_path / "houses.csv"
    table(40).to_csv(path, index=False)
    browser.open(f"{server.url}/", width=400, height=900, dark=dark)
    browser.until(f"{SHOWN} > 0")
    upload(browser, path)
    assert browser.run("document.getElementById('download').download") == "houses-predicted.csv"
    content = browser.run("fetch(document.getElementById('download').href).then((r) => r.text()).catch(String)")
    expected = server.client.post(
        "/predict?keep_all=true", content=path.read_bytes(), headers={"Content-Type": "text/csv"}
    )
    # The policy forbids to fetch the file of the link, so that its content is compared with the preview.
    assert "Failed to fetch" in content
    header, first, *_ = expected.text.splitlines()
    assert set(header.split(",")) <= set(
        browser.run("[...document.querySelectorAll('#preview th')].map((cell) => cell.textContent)")
    )
    assert browser.run("document.querySelectorAll('#preview td svg').length") == 20
    assert first.split(",")[0] in text(browser, "preview")
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(18, 22, 27)" if dark else "rgb(244, 245, 247)")
    browser.events = [event for event in browser.events if "blob:" not in json.dumps(event)]
    check(browser, server, 400)


def test_errors_are_sentences(server: Live, browser: Browser, tmp_path: Path) -> None:
    browser.open(f"{server.url}/")
    browser.until(f"{SHOWN} > 0")
    path = tmp_path / "wrong.csv"
    path.write_text("a,b\n1,2\n")
    upload(browser, path)
    assert "are missing, which training had" in text(browser, "table-error")
    assert browser.run("document.getElementById('download').hidden") is True


def test_the_page_asks_for_the_token(runs: Path, browser: Browser) -> None:
    with running(runs / "regression", token="correct-horse-battery") as live:
        browser.open(f"{live.url}/")
        browser.until("!document.getElementById('access').hidden")
        enter = """(() => {{
          document.getElementById("token").value = {token!r};
          document.getElementById("token-form").requestSubmit();
        }})()"""
        browser.run(enter.format(token="wrong-horse-battery"))
        browser.until(f"{TEXT.format(id='token-error')}.includes('token')")
        browser.run(enter.format(token="correct-horse-battery"))
        browser.until(f"{SHOWN} > 0")
        assert browser.run("document.getElementById('access').hidden") is True
