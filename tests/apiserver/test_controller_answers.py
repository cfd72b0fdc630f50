"""What else than an API server answers to kopf's own requests ends no operator, as a process, and
is not requested again at once.
"""

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path

import pytest
from aiohttp import web

from support.http_proxy import http_proxy
from support.operators import a_lease, a_run, eventually
from support.processes import Process
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.controller.handlers import CHUNK

HTML = "<html>starting</html>"
KINDS = ("trainingruns", "rayjobs", "rayclusters", "pods", "nodes")


def what_kopf_requests(request: web.Request) -> str | None:
    """A name for it; None: it is not one of kopf's own requests."""
    name = request.path.rpartition("/")[2]
    if "watch" in request.query:
        return f"watch {name}"
    if request.query.get("limit") == str(CHUNK):
        return f"list {name}"
    return request.path if request.path.count("/") <= 2 or is_group(request) else None


def is_group(request: web.Request) -> bool:
    """Whether it is for the kinds of an API group."""
    return request.path.startswith("/apis/") and request.path.count("/") == 3


Answer = Callable[[web.Request], web.StreamResponse]


class Says:
    """The first requests of kopf's of each name get these answers."""

    def __init__(self, answers: Sequence[Answer], about: str = ""):
        """`about` is what the names of those requests begin with."""
        self.times_of: dict[str, list[float]] = defaultdict(list)
        self._answers, self._about = answers, about

    def __call__(self, request: web.Request) -> web.StreamResponse | None:
        name = what_kopf_requests(request)
        if name is None or not name.startswith(self._about):
            return None
        number = len(self.times_of[name])
        self.times_of[name].append(time.monotonic())
        return self._answers[number](request) if number < len(self._answers) else None


def no_http(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 starting\r\n\r\n")
    request.transport.close()
    return web.Response()


def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    request.transport.write(head + b'{"items": [')
    request.transport.close()
    return web.Response()


def not_found(request: web.Request) -> web.StreamResponse:
    """But for an API group, which may really not be there."""
    status = 503 if is_group(request) else 404
    return web.Response(status=status, text=HTML, content_type="text/html")


def a_page(_: web.Request) -> web.StreamResponse:
    return web.Response(text=HTML, content_type="text/html")


def a_page_that_says_it_is_json(_: web.Request) -> web.StreamResponse:
    return web.Response(text=HTML, content_type="application/json")


def a_page_elsewhere(_: web.Request) -> web.StreamResponse:
    return web.Response(status=HTTPStatus.FOUND, headers={"Location": "/log-in"}, text=HTML)


def another_object(_: web.Request) -> web.StreamResponse:
    return web.json_response({"message": "starting"})


def no_object(_: web.Request) -> web.StreamResponse:
    return web.json_response([])


def text(_: web.Request) -> web.StreamResponse:
    return web.Response(text='{"items": [], "groups": [], "versions": [], "resources": []}')


def nothing(_: web.Request) -> web.StreamResponse:
    return web.Response()


@pytest.fixture
def start(apiserver, namespace, tmp_path):
    started = []
    system = apiserver.new_namespace()
    apiserver.create(a_lease(system))

    def begin(kubeconfig: Path) -> Process:
        settings = {"NAMESPACES": namespace, "OPERATOR_NAMESPACE": system}
        started.append(Process(kubeconfig, tmp_path / "log.json", **settings))
        return started[-1]

    yield begin
    for one in started:
        one.end()


async def until(operator: Process, probe: Callable[[], object]) -> None:
    """Until it is true; fails at once where the process has ended."""
    await eventually(lambda: probe() or operator.process.poll() is not None)
    assert operator.process.poll() is None, operator.log.read_text()[-3000:]


@pytest.mark.parametrize(
    "answers",
    [
        (a_page, no_http),
        (a_page_that_says_it_is_json, cut),
        (another_object, not_found),
        (no_object, nothing),
        (text, a_page_elsewhere),
    ],
    ids=lambda answers: " and ".join(one.__name__ for one in answers),
)
async def test_the_operator_goes_on_after_what_no_api_server_answers_and_asks_again_later(
    apiserver, namespace, start, tmp_path, answers
):
    async with http_proxy(apiserver, tmp_path / "by-way-of-the-proxy") as proxy:
        proxy.instead = says = Says(answers)
        operator = start(proxy.kubeconfig)
        await until(operator, lambda: operator.get("/readyz")[0] == 200)
        apiserver.create(a_run(namespace))
        await until(
            operator,
            lambda: (
                apiserver.get(API_VERSION, KIND, "digits", namespace)
                .get("status", {})
                .get("attempt")
            ),
        )
        assert operator.get("/healthz")[0] == 200
        of_kinds = [f"{verb} {kind}" for verb in ("list", "watch") for kind in KINDS]
        for name in ("/api", "/apis", *of_kinds):
            times = says.times_of[name]
            await until(operator, lambda of=times: len(of) > 2)
            assert times[2] - times[0] > 1.4, f"{name} was requested again at once"
        operator.end()


@pytest.mark.parametrize("about", ["/api", "list", "watch"])
async def test_an_operator_that_is_answered_so_for_ever_ends_when_it_is_told_to(
    apiserver, start, tmp_path, about
):
    async with http_proxy(apiserver, tmp_path / "by-way-of-the-proxy") as proxy:
        proxy.instead = says = Says([a_page] * 10**6, about)
        operator = start(proxy.kubeconfig)
        await until(operator, lambda: any(len(times) > 2 for times in says.times_of.values()))
        operator.process.send_signal(signal.SIGTERM)
        await eventually(lambda: operator.process.poll() is not None)
        assert operator.process.returncode == 0, operator.log.read_text()[-3000:]
