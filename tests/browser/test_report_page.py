"""The page of a run in a real Chromium: what is seen, on a phone, in the dark and printed."""

import http.server
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.browser import HOSTILE, chromium, contrast, opened, text_of
from support.cli_server import call
from support.report_runs import FAILURE, failed_run
from trainingrun_runtime.store.bucket import Bucket

SCREENSHOTS = Path(__file__).resolve().parents[1] / ".artifacts" / "report"
PICTURE = Path(__file__).resolve().parents[2] / "docs" / "run-page.png"
"""The upper part of the page, written where UPDATE_PICTURES is set."""


def test_there_is_a_browser() -> None:
    """Without one nothing here is tested: this fails with a sentence instead of skipping."""
    assert Path(chromium()).exists()


class Served:
    """A folder over HTTP, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                asked.append(self.path)

        handler = partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path)
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def report_of(folder: Path, text: str = "") -> None:
    """The page of a failed run, as the command writes it."""
    run = folder / "demo-1a2b3c4d"
    failed_run(Bucket.open(run.as_uri()), text)
    code, output, errors = call("report", run.as_uri(), "--html", "--to", f"{folder}/r.html")
    assert (code, errors) == (0, ""), output


async def test_the_page_says_what_happened(served: Served, tmp_path: Path) -> None:
    report_of(tmp_path)
    async with opened(f"{served.url}/r.html") as page:
        await page.resize(1280)
        assert await page.evaluate("document.title") == "demo-1a2b3c4d: Failed"
        heading = await text_of(page, "header")
        assert FAILURE in heading, "why, and what to do"
        assert "rank 2 is 2.4 times slower" in heading
        assert "331\nof 600" in heading
        assert "line 88" in await text_of(page, "#failure")
        await page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
        failed = await text_of(page, "#failure")
        assert "Last lines of rank 6 in attempt 3, which failed first" in failed
        assert "reading shard 41 79" in failed
        hang = await text_of(page, "#hang")
        assert "rank 2 hangs in read" in hang
        assert "Stack of rank 15" in hang
        assert "those of 4 further ranks" in hang
        attempts = (await text_of(page, "#attempts tbody")).splitlines()
        assert ["Failed" in line for line in attempts if line][-1]
        assert "has left no record" in "\n".join(attempts)
        losses = await text_of(page, "#losses")
        assert "demo-1-worker-1, spot-4" in losses
        assert "resumed from step 103" in losses
        assert await text_of(page, "#ranks tr.marked") == await text_of(
            page, "#ranks tbody tr:nth-child(3)"
        )
        assert "Rank 2 on spot-2 takes 1.04 s" in await text_of(page, "#ranks")
        curves = await page.evaluate(
            "[...document.querySelectorAll('figure h3')].map(each => each.innerText)"
        )
        assert curves == [
            "loss",
            "learning_rate",
            "samples_per_second",
            "gradient_norm",
            "accuracy",
        ]
        drawn = await page.evaluate(
            "[...document.querySelectorAll('#curves figure:first-child path[class^=c]')]"
            ".map(each => each.getTotalLength() > 50)"
        )
        assert drawn == [True, True], "a line for each attempt that has reported"
        assert (await text_of(page, "#checkpoints tbody tr:first-child")).startswith("300")
        shares = await page.evaluate(
            "[...document.querySelectorAll('#time td:last-child')]"
            ".reduce((sum, each) => sum + parseFloat(each.innerText), 0)"
        )
        assert shares == pytest.approx(100, abs=0.3)
        assert page.complaints == []
        assert {url.partition(":")[0] for url in page.requests} <= {"http", "data"}
        assert served.asked == ["/r.html"], "it asks for nothing else"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
async def test_it_fits_and_is_readable(
    served: Served, tmp_path: Path, width: int, scheme: str
) -> None:
    report_of(tmp_path)
    async with opened(f"{served.url}/r.html") as page:
        await page.resize(width)
        await page.emulate(scheme)
        await page.screenshot(SCREENSHOTS / f"{width}-{scheme}.png")
        if (width, scheme) == (1280, "light") and os.environ.get("UPDATE_PICTURES"):
            await page.screenshot(PICTURE, x=70, y=0, width=1140, height=1250)
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "nothing is wider than the screen"
        assert await contrast(page, "body") > 10
        for selector in (".soft", ".state", ".tag.bad", ".message", "pre", ".x"):
            assert await contrast(page, selector) > 4.5, selector
        small = await page.evaluate(
            "Math.min(...[...document.querySelectorAll('body *')].filter(each => each.innerText)"
            ".map(each => parseFloat(getComputedStyle(each).fontSize)))"
        )
        assert small >= 11


async def test_all_of_it_is_printed_on_white(served: Served, tmp_path: Path) -> None:
    report_of(tmp_path)
    async with opened(f"{served.url}/r.html") as page:
        await page.resize(794)
        await page.emulate("dark", "print")
        await page.screenshot(SCREENSHOTS / "print.png")
        assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert await contrast(page, ".soft") > 4.5
        pdf = await page.call("Page.printToPDF", printBackground=True)
        assert len(pdf["data"]) > 10_000


async def test_text_of_a_run_is_text(served: Served, tmp_path: Path) -> None:
    report_of(tmp_path, HOSTILE)
    async with opened(f"{served.url}/r.html") as page:
        await page.resize(390)
        await page.evaluate(
            "document.querySelectorAll('*').forEach(each => "
            "each.dispatchEvent(new MouseEvent('mouseover')))"
        )
        await page.screenshot(SCREENSHOTS / "hostile.png")
        assert await page.evaluate("document.title") == "demo-1a2b3c4d: Failed"
        for tag in ("script", "img", "iframe", "a", "form", "object"):
            assert await page.evaluate(f"document.querySelectorAll('{tag}').length") == 0, tag
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390
        body = await text_of(page, "body")
        assert "<script>document.title='owned'</script>" in body, "it is shown as it was written"
        assert "{{ 7 * 7 }}" in body
        assert "\x1b" not in body
        assert "\u202e" not in body
        assert page.complaints == []
        assert served.asked == ["/r.html"]
