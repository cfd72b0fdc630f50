#!/usr/bin/env bash
# kopf 1.45.2: an operator whose only handler is one of raw events takes the finalizer of another
# operator off the objects that it watches.
#
# A handler of `kopf.on.event` needs no finalizer and changes nothing. kopf looks all the same at
# each object of its kind for the finalizer of its settings, and patches it away where no handler of
# its own asks for one. The default is `kopf.zalando.org/KopfFinalizerMarker` in every operator
# written with kopf, so two of them that watch one kind, such as Pods, undo each other: the cleanup
# of the one that had set it is skipped once the object is deleted. `standalone` does not keep it from
# writing. Where no object can have the finalizer, as with `settings.persistence.finalizer` set to a
# name that the API server refuses, nothing is patched.
#
# Output as seen:
#   kopf 1.45.2, the default: events seen ['one'], patches [[{'op': 'test', 'path':
#     '/metadata/resourceVersion', 'value': '5'}, {'op': 'remove', 'path': '/metadata/finalizers'}]]
#   kopf 1.45.2, 'no finalizer': events seen ['one'], patches []
#
# Fails if that changes. Needs Python 3.10 or later and a package registry. The API server is a
# stand-in of 40 lines in the same process: it has one kind, and one object.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet kopf==1.45.2 aiohttp==3.14.5
cat > "$folder/try.py" <<'PYTHON'
import asyncio
import importlib.metadata
import json
import logging
import os
import sys
import tempfile

import kopf
from aiohttp import web

MARK = "kopf.zalando.org/KopfFinalizerMarker"
VERSION = importlib.metadata.version("kopf")
seen, patches = [], []
thing = {
    "apiVersion": "example.com/v1",
    "kind": "Thing",
    "metadata": {"name": "one", "namespace": "default", "uid": "1", "resourceVersion": "5",
                 "finalizers": [MARK], "labels": {}, "annotations": {}},
}
KIND = {"name": "things", "singularName": "thing", "kind": "Thing", "namespaced": True,
        "verbs": ["get", "list", "watch", "patch"]}


async def answer(request):
    path = request.path
    if request.method == "PATCH":
        patches.append(await request.json())
        return web.json_response(thing)
    if "watch" in request.query:
        stream = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.sleep(30)
        return stream
    if path.endswith("/things"):
        return web.json_response({"kind": "ThingList", "metadata": {"resourceVersion": "5"},
                                  "items": [thing]})
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


async def run(finalizer):
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
        if finalizer:
            settings.persistence.finalizer = finalizer

    @kopf.on.event("example.com", "v1", "things", registry=registry)
    def notice(name, **_):
        seen.append(name)

    operator = asyncio.ensure_future(kopf.operator(
        registry=registry, standalone=True, clusterwide=True, stop_flag=stop))
    for _ in range(100):  # a patch comes within a second of the event
        await asyncio.sleep(0.05)
        if patches:
            break
    stop.set()
    await asyncio.wait([operator], timeout=10)
    await runner.cleanup()


logging.disable(logging.CRITICAL)
chosen = sys.argv[1] if len(sys.argv) > 1 else None
asyncio.run(run(chosen))
print(f"kopf {VERSION}, {repr(chosen) if chosen else 'the default'}: "
      f"events seen {sorted(set(seen))}, patches {patches[:1]}")
assert sorted(set(seen)) == ["one"]
removal = [{"op": "test", "path": "/metadata/resourceVersion", "value": "5"},
           {"op": "remove", "path": "/metadata/finalizers"}]
assert patches[:1] == ([] if chosen else [removal])
PYTHON
for arguments in "" "no finalizer"; do
  "$folder/venv/bin/python" "$folder/try.py" ${arguments:+"$arguments"}
done
