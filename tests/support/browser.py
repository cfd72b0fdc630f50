"""A page in a real Chromium without a window, through its DevTools protocol."""

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from support.binaries import Unavailable

_FLAGS = (
    "--headless",
    "--no-sandbox",  # as root in a container
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
_START_S = 60.0

HOSTILE = (
    "</td></table></pre></style></title><script>document.title='owned'</script>"
    "<img src=x onerror=\"document.title='owned'\"><iframe src='https://example.org'></iframe>"
    '" onmouseover="document.title=\'owned\'" style="width:4000px" x=\'{{ 7 * 7 }}'
    "\x1b[31m\u202e&lt;"
)
"""What would run, load or change a page that took text for HTML."""


def chromium() -> str:
    """The path of Chromium: $CHROMIUM, or on PATH.

    Raises:
        Unavailable: there is none.
    """
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise Unavailable(
            "no Chromium: it is neither $CHROMIUM nor on PATH; Debian: apt install chromium"
        )
    return found


class Page:
    """A page that is open."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, count(1)
        self.requests: list[str] = []
        """URLs of all requests so far."""
        self.complaints: list[str] = []
        """What the browser has written to its console."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of the protocol, and its answer; events meanwhile are noted."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), _START_S)
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    async def wait_for(self, event: str) -> None:
        """Until this event has come."""
        while True:
            message = await asyncio.wait_for(self._socket.receive_json(), _START_S)
            self._note(message)
            if message.get("method") == event:
                return

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def resize(self, width: int, height: int = 900) -> None:
        """As on a screen of so many pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    async def emulate(self, scheme: str, media: str = "screen") -> None:
        """`light` or `dark`, on `screen` or in `print`."""
        await self.call(
            "Emulation.setEmulatedMedia",
            media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    async def screenshot(self, target: Path, **clip: int) -> None:
        """All of the page, as PNG, or of it `x`, `y`, `width` and `height` in pixels."""
        part = {"clip": {**clip, "scale": 1}} if clip else {}
        answer = await self.call("Page.captureScreenshot", captureBeyondViewport=True, **part)
        content = base64.b64decode(answer["data"])
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(target.write_bytes, content)

    def _note(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(found["entry"]["text"])
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown":
                self.complaints.append(str(found))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Page]:
    """The page at this URL, loaded."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium(),
            *_FLAGS,
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port(Path(profile), process)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = await answer.json()
                own = next(each for each in targets if each["type"] == "page")
                socket = await session.ws_connect(own["webSocketDebuggerUrl"], max_msg_size=0)
                async with socket:
                    page = Page(socket)
                    for domain in ("Page", "Network", "Log", "Runtime"):
                        await page.call(f"{domain}.enable")
                    await page.call("Page.navigate", url=url)
                    await page.wait_for("Page.loadEventFired")
                    yield page
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _port(profile: Path, process: asyncio.subprocess.Process) -> int:
    file = profile / "DevToolsActivePort"
    deadline = asyncio.get_running_loop().time() + _START_S
    while not (file.exists() and "\n" in file.read_text()):
        assert process.returncode is None, f"Chromium ended with {process.returncode}"
        assert asyncio.get_running_loop().time() < deadline, "Chromium did not start"
        await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])


async def text_of(page: Page, selector: str) -> str:
    """What is to be read in the first such element."""
    found = await page.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")
    assert isinstance(found, str)
    return found


_CONTRAST = """selector => {
  const light = color => {
    const parts = color.match(/[\\d.]+/g).slice(0, 3).map(each => each / 255)
      .map(each => each <= 0.03928 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)')
    behind = behind.parentElement;
  const [darker, lighter] = [light(getComputedStyle(element).color),
    light(getComputedStyle(behind).backgroundColor)].sort((a, b) => a - b);
  return (lighter + 0.05) / (darker + 0.05);
}"""


async def contrast(page: Page, selector: str) -> float:
    """Of the text of the first such element against what is behind it, as WCAG counts it."""
    return float(await page.evaluate(f"({_CONTRAST})({json.dumps(selector)})"))
