"""The operator's own HTTP: probes for the kubelet, metrics for Prometheus."""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .operator import Operator


def probes(operator: Operator) -> web.Application:
    """GET /healthz: 200 while a restart would not help; /readyz: 200 once everything is listed.

    An operator that stands by is ready: it would lead at once, and a rollout must not wait for it
    to do so while the former one leads.
    """

    async def healthz(_: web.Request) -> web.Response:
        complaint = operator.complaint
        return web.Response(status=500 if complaint else 200, text=(complaint or "ok") + "\n")

    async def readyz(_: web.Request) -> web.Response:
        ready = operator.ready
        return web.Response(
            status=200 if ready else 503, text="ok\n" if ready else "not everything is listed yet\n"
        )

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    return application


def metrics(operator: Operator) -> web.Application:
    """GET /metrics in Prometheus' text format."""

    async def scrape(_: web.Request) -> web.Response:
        content = generate_latest(operator.metrics.registry)
        return web.Response(body=content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/metrics", scrape)])
    return application


async def serve(application: web.Application, port: int) -> web.AppRunner:
    """Listens on every address; `cleanup` the result.

    Raises:
        OSError: the port is taken.
    """
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
