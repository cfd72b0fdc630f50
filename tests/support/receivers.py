"""A webhook's receiver, over real HTTP or HTTPS."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from aiohttp import web

from support.tls import Tls

PATH = "/services/T0/B0/a-secret-path"


class Received(NamedTuple):
    """One request that has come in whole."""

    key: str
    """Its header Idempotency-Key."""
    content_type: str
    body: Any
    path: str


class Receiver:
    """Answers 200, but first what is in `answers`; a 0 there is no answer at all."""

    def __init__(self, *answers: int, headers: dict[str, str] | None = None):
        """With these answers, in this order."""
        self.answers = list(answers)
        self.received: list[Received] = []
        self.hanging = 0
        """Requests that wait for an answer."""
        self.port = 0
        self._headers = headers or {}

    @property
    def bodies(self) -> list[Any]:
        """What was received."""
        return [one.body for one in self.received]

    @property
    def url(self) -> str:
        """Its whole address, without TLS."""
        return f"http://127.0.0.1:{self.port}{PATH}"

    @property
    def allowed(self) -> str:
        """The entry of the settings that names it."""
        return f"http://127.0.0.1:{self.port}"

    @contextlib.asynccontextmanager
    async def listening(self, tls: Tls | None = None) -> AsyncIterator["Receiver"]:
        """On a free port of this machine."""
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(tls.certificate, tls.key)
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._take)
        runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _take(self, request: web.Request) -> web.StreamResponse:
        self.received.append(
            Received(
                request.headers.get("Idempotency-Key", ""),
                request.headers.get("Content-Type", ""),
                await request.json(),
                request.path,
            )
        )
        status = self.answers.pop(0) if self.answers else 200
        if status == 0:
            self.hanging += 1
            await asyncio.Event().wait()
        return web.Response(status=status, headers=self._headers)
