"""A proxy between an operator's process and the API server that says something of its own."""

import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
from aiohttp import web
from yarl import URL

from support.apiserver import ApiServer

_PASSED_ON = ("Authorization", "Content-Type", "Accept")


class HttpProxy:
    """What leads to it is in `kubeconfig`; each request goes on as it is, unless `instead` has an
    answer of its own to it.
    """

    def __init__(self, server: ApiServer, kubeconfig: Path, session: aiohttp.ClientSession):
        self.kubeconfig = kubeconfig
        self.instead: Callable[[web.Request], web.StreamResponse | None] = lambda _: None
        self._server, self._session = server, session
        self._watches: dict[str, web.StreamResponse] = {}

    async def say(self, resource: str, line: bytes) -> bool:
        """A line in the newest watch of a resource; whether there is one, and it is open."""
        with contextlib.suppress(KeyError, OSError):
            await self._watches[resource].write(line + b"\n")
            return True
        return False

    async def pass_on(self, request: web.Request) -> web.StreamResponse:
        """One request, whose answer is passed on as it arrives."""
        if (said := self.instead(request)) is not None:
            return said
        url = URL(self._server.url + request.raw_path, encoded=True)
        headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
        content = await request.read()
        async with self._session.request(
            request.method, url, headers=headers, data=content
        ) as answer:
            own = web.StreamResponse(status=answer.status)
            own.content_type = answer.content_type
            await own.prepare(request)
            if request.query.get("watch") in ("true", "True", "1"):
                self._watches[request.path.rpartition("/")[2]] = own
            with contextlib.suppress(OSError):
                async for chunk in answer.content.iter_any():
                    await own.write(chunk)
        return own


@contextlib.asynccontextmanager
async def http_proxy(server: ApiServer, kubeconfig: Path) -> AsyncIterator[HttpProxy]:
    """Listens on this machine until it is left; writes the kubeconfig that leads to it."""
    connector = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cafile=server.ca_file))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        proxy = HttpProxy(server, kubeconfig, session)
        runner = web.AppRunner(web.Application(client_max_size=2**24), shutdown_timeout=0.1)
        runner.app.add_routes([web.route("*", "/{path:.*}", proxy.pass_on)])
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        _lead_to(f"http://127.0.0.1:{runner.addresses[0][1]}", server, kubeconfig)
        try:
            yield proxy
        finally:
            await runner.cleanup()


def _lead_to(url: str, server: ApiServer, kubeconfig: Path) -> None:
    found = json.loads(server.kubeconfig.read_text())
    found["clusters"][0]["cluster"] = {"server": url}
    kubeconfig.write_text(json.dumps(found))
