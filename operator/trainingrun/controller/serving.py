"""The operator's own HTTP: readiness for the kubelet, metrics for Prometheus.

Liveness is kopf's to serve, see `handlers.healthy`.
"""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .operator import Operator


async def serve(operator: Operator) -> list[web.AppRunner]:
    """Listens on every address; `cleanup` each of the result.

    GET /readyz is 200 once everything is listed. An operator that stands by is ready: it would lead
    at once, and a rollout must not wait for it to do so while the former one leads. GET /metrics is
    in Prometheus' text format, on a port of its own, which a NetworkPolicy can close.

    Raises:
        OSError: a port is taken.
    """

    async def readyz(_: web.Request) -> web.Response:
        if operator.ready:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="not everything is listed yet\n")

    async def metrics(_: web.Request) -> web.Response:
        content = generate_latest(operator.metrics.registry)
        return web.Response(body=content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    own = operator.settings.operator
    return [
        await _listen(web.get("/readyz", readyz), own.ready_port),
        await _listen(web.get("/metrics", metrics), own.metrics_port),
    ]


async def _listen(route: web.RouteDef, port: int) -> web.AppRunner:
    application = web.Application()
    application.add_routes([route])
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
