#!/usr/bin/env bash
# kubernetes 37.0.2 (Python): deleting an object whose name is "" or "." asks for the deletion of all objects of the kind.
#
# The client checks that a name is not None and puts it into the path as it is. "" leaves the path
# of the collection; of "." urllib3 removes the dot segment, which comes to the same. An API server
# takes DELETE there for deletecollection: kube-apiserver 1.34.4 answered the second with 200 and
# deleted each custom object of the kind in the namespace.
#
# Output as seen; the server here is a stub that prints what it is asked:
#   pods 'digits': DELETE /api/v1/namespaces/team-a/pods/digits
#   pods '': DELETE /api/v1/namespaces/team-a/pods/
#   pods '.': DELETE /api/v1/namespaces/team-a/pods/
#   custom objects '': DELETE /apis/example.org/v1/namespaces/team-a/jobs/
#   custom objects '.': DELETE /apis/example.org/v1/namespaces/team-a/jobs/
#
# Fails if the client behaves otherwise. Needs Python 3.10 or later and its registry.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check kubernetes==37.0.2
"$folder/venv/bin/python" - >"$folder/seen" <<'PYTHON'
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

from kubernetes import client


class Stub(BaseHTTPRequestHandler):
    def do_DELETE(self) -> None:
        asked.append(f"DELETE {self.path}")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        pass


asked: list[str] = []
server = HTTPServer(("127.0.0.1", 0), Stub)
threading.Thread(target=server.serve_forever, daemon=True).start()
api = client.ApiClient(client.Configuration(host=f"http://127.0.0.1:{server.server_port}"))
for name in ("digits", "", "."):
    client.CoreV1Api(api).delete_namespaced_pod(name, "team-a")
    print(f"pods {name!r}: {asked.pop()}")
objects = client.CustomObjectsApi(api)
for name in ("", "."):
    objects.delete_namespaced_custom_object("example.org", "v1", "team-a", "jobs", name)
    print(f"custom objects {name!r}: {asked.pop()}")
server.shutdown()
PYTHON
cat "$folder/seen"
diff "$folder/seen" - <<'SEEN'
pods 'digits': DELETE /api/v1/namespaces/team-a/pods/digits
pods '': DELETE /api/v1/namespaces/team-a/pods/
pods '.': DELETE /api/v1/namespaces/team-a/pods/
custom objects '': DELETE /apis/example.org/v1/namespaces/team-a/jobs/
custom objects '.': DELETE /apis/example.org/v1/namespaces/team-a/jobs/
SEEN
