"""An admission webhook that answers when the test lets it."""

import asyncio
import base64
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from support.apiserver import ApiServer
from support.tls import certificates

RAY_JOBS = {"apiGroups": ["ray.io"], "apiVersions": ["v1"], "resources": ["rayjobs"]}
EVENTS = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["events"]}


class HeldWebhook:
    """Holds every request until `released` is set; then it admits them."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.held: list[float] = []
        """Monotonic times at which requests came in."""

    def held_for_s(self) -> float:
        """Seconds since the first request; 0: there was none."""
        return time.monotonic() - self.held[0] if self.held else 0.0

    @contextlib.asynccontextmanager
    async def listening(
        self,
        server: ApiServer,
        namespace: str,
        folder: Path,
        created: Mapping[str, list[str]] = RAY_JOBS,
    ) -> AsyncIterator["HeldWebhook"]:
        """For what is `created` in a namespace; `folder` gets its certificate."""
        tls = certificates(folder)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        application = web.Application()
        application.add_routes([web.post("/", self._answer)])
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        port, authority = runner.addresses[0][1], tls.authority.read_bytes()
        webhook = _configuration(namespace, port, authority, created)
        await asyncio.to_thread(server.create, webhook)
        try:
            yield self
        finally:
            self.released.set()
            await asyncio.to_thread(server.request, "DELETE", server.path(webhook))
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        review = await request.json()
        self.held.append(time.monotonic())
        await self.released.wait()
        answer = {"uid": review["request"]["uid"], "allowed": True}
        kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return web.json_response({**kind, "response": answer})


def _configuration(
    namespace: str, port: int, certificate: bytes, created: Mapping[str, list[str]]
) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"held-{namespace}"},
        "webhooks": [
            {
                "name": "held.example.com",
                "clientConfig": {
                    "url": f"https://127.0.0.1:{port}/",
                    "caBundle": base64.b64encode(certificate).decode(),
                },
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 30,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [{**created, "operations": ["CREATE"]}],
            }
        ],
    }
