#!/usr/bin/env bash
# kopf 1.45.2: a watch that the API server ends is opened anew at once, and a list that is answered
# with 404 ends the operator.
#
# A watch may end at any time, and without an event: of its timeout, of a server or a proxy that
# shuts down, of one that buffers. kopf then sends the next request from the same resource version
# without any pause, hundreds of times a second where each ends at once.
# `settings.watching.reconnect_backoff` is a pause before the next list, and is not met here;
# `settings.networking.error_backoffs` are for connections and servers that fail. A 404 is none of
# these: it leaves the watcher, and with it `kopf.operator()`, as an exception, though an API server
# answers so for a moment while it starts or while a CRD is replaced. Whoever runs kopf against other
# than one healthy API server needs a pause and another error in between, such as by a middleware of
# its aiohttp session.
#
# Output as seen:
#   kopf 1.45.2, watches end at once: 1 list, 50 watches or more, less than 0.1 s apart: True
#   kopf 1.45.2, lists are answered with 404: 1 list, the operator ended: True, APINotFoundError
#
# Fails if that changes. Needs Python 3.10 or later and a package registry. The API server is a
# stand-in of 40 lines in the same process: it has one kind, and no object.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet kopf==1.45.2 aiohttp==3.14.5
cat > "$folder/try.py" <<'PYTHON'
import asyncio
import importlib.metadata
import logging
import sys
import time

import kopf
from aiohttp import web

VERSION = importlib.metadata.version("kopf")
KIND = {"name": "things", "singularName": "thing", "kind": "Thing", "namespaced": True,
        "verbs": ["get", "list", "watch", "patch"]}
LIST = {"kind": "ThingList", "metadata": {"resourceVersion": "5"}, "items": []}
NOT_FOUND = {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
             "message": "the server could not find the requested resource"}
watches, lists = [], []


async def answer(request):
    path = request.path
    if path.endswith("/things"):
        if "watch" in request.query:
            watches.append(time.monotonic())
            return web.Response(content_type="application/json")  # its end, and no event before it
        lists.append(time.monotonic())
        if case == "lists are answered with 404":
            return web.json_response(NOT_FOUND, status=404)
        return web.json_response(LIST)
    if "watch" in request.query:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.sleep(30)
        return stream
    if path == "/apis/example.com/v1":
        return web.json_response({"groupVersion": "example.com/v1", "resources": [KIND]})
    if path == "/api":
        return web.json_response({"versions": ["v1"]})
    if path == "/api/v1":
        kind = {**KIND, "name": "namespaces", "kind": "Namespace", "namespaced": False}
        return web.json_response({"groupVersion": "v1", "resources": [kind]})
    if path == "/apis":
        one = {"groupVersion": "example.com/v1", "version": "v1"}
        group = {"name": "example.com", "versions": [one], "preferredVersion": one}
        return web.json_response({"groups": [group]})
    return web.json_response({"items": [], "metadata": {"resourceVersion": "5"}})


async def run():
    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    registry, stop = kopf.OperatorRegistry(), asyncio.Event()

    @kopf.on.login(registry=registry)
    def login(**_):
        return kopf.ConnectionInfo(server=server)

    @kopf.on.startup(registry=registry)
    def configure(settings, **_):
        settings.posting.enabled = False
        settings.persistence.finalizer = "no finalizer"
        settings.watching.reconnect_backoff = 5.0

    @kopf.on.event("example.com", "v1", "things", registry=registry)
    def notice(**_):
        pass

    operator = asyncio.ensure_future(kopf.operator(
        registry=registry, standalone=True, clusterwide=True, stop_flag=stop))
    for _ in range(100):
        await asyncio.sleep(0.1)
        if operator.done() or len(watches) >= 50:
            break
    ended = operator.done()
    error = operator.exception() if ended else None
    stop.set()
    await asyncio.wait([operator], timeout=10)
    await runner.cleanup()
    return ended, error


logging.disable(logging.CRITICAL)
case = sys.argv[1]
ended, error = asyncio.run(run())
print(f"kopf {VERSION}, {case}: ", end="")
if case == "watches end at once":
    between = (watches[-1] - watches[0]) / (len(watches) - 1)
    print(f"{len(lists)} list, 50 watches or more, less than 0.1 s apart: {between < 0.1}")
    assert (len(lists), len(watches) >= 50, between < 0.1) == (1, True, True), between
    assert not ended
else:
    print(f"{len(lists)} list, the operator ended: {ended}, {type(error).__name__}")
    assert (len(lists), ended, type(error).__name__) == (1, True, "APINotFoundError")
PYTHON
for case in "watches end at once" "lists are answered with 404"; do
  "$folder/venv/bin/python" "$folder/try.py" "$case"
done
