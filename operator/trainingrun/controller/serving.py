"""The operator's own HTTP: readiness for the kubelet, metrics for Prometheus.

Liveness is kopf's to serve, see `handlers.healthy`.
"""

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from .operator import Operator


async def serve(operator: Operator, port: int) -> web.AppRunner:
    """Listens on every address; `cleanup` the result.

    GET /readyz is 200 once everything is listed. An operator that stands by is ready: it would lead
    at once, and a rollout must not wait for it to do so while the former one leads. GET /metrics is
    in Prometheus' text format.

    Raises:
        OSError: the port is taken.
    """

    async def readyz(_: web.Request) -> web.Response:
        ready = operator.ready
        return web.Response(
            status=200 if ready else 503, text="ok\n" if ready else "not everything is listed yet\n"
        )

    async def metrics(_: web.Request) -> web.Response:
        content = generate_latest(operator.metrics.registry)
        return web.Response(body=content, headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, handle_signals=False, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner
