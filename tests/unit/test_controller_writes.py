"""The one place through which every write goes asks first whether this process may write."""

import asyncio
import time
from collections.abc import Callable

import pytest
from aiohttp import web

from trainingrun.cluster.api_client import ClusterError, Connection, NotLeading, proxy_for
from trainingrun.cluster.credentials import Credentials


@pytest.fixture
async def server():
    """Plays an API server; `asked` holds the methods that reached it."""
    application = web.Application()
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.method)
        if "slow" in request.path:
            await asyncio.sleep(30)
        if "second" in request.path:
            await asyncio.sleep(1)
        return web.json_response({"kind": "Thing"})

    application.add_routes([web.route("*", "/{path:.*}", answer)])
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    await runner.cleanup()


def connect(url: str, may_write_s: Callable[[], float]) -> Connection:
    return Connection(Credentials(url), may_write_s=may_write_s)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_without_the_lead_nothing_that_changes_anything_is_sent(server, method):
    url, asked = server
    connection = connect(url, lambda: 0.0)
    try:
        with pytest.raises(NotLeading):
            await connection.request(method, "/thing", {})
        await connection.request("GET", "/thing")
    finally:
        await connection.close()
    assert asked == ["GET"], "reading continues, for the caches stay warm"


async def test_a_write_under_way_is_given_up_when_the_right_to_write_ends(server):
    url, _ = server
    began = time.monotonic()
    connection = connect(url, lambda: began + 0.3 - time.monotonic())
    try:
        with pytest.raises(ClusterError, match="another operator may lead"):
            await connection.request("POST", "/slow", {})
    finally:
        await connection.close()
    assert time.monotonic() - began < 5


async def test_a_slow_answer_is_awaited_while_the_lease_is_renewed(server):
    """An admission webhook may take longer than is left of the Lease when the write begins."""
    url, asked = server
    renewals = iter([0.1, 0.1, 0.1, 0.1, 0.1])
    connection = connect(url, lambda: next(renewals, 30.0))
    try:
        found = await connection.request("POST", "/a-second", {})
    finally:
        await connection.close()
    assert (found, asked) == ({"kind": "Thing"}, ["POST"])


@pytest.mark.parametrize("exempt", ["", "api.invalid"])
async def test_the_api_server_is_reached_through_the_proxy_that_the_environment_names(
    server, monkeypatch, exempt
):
    url, asked = server
    monkeypatch.setenv("http_proxy", url)
    monkeypatch.setenv("no_proxy", exempt)
    connection = connect("http://api.invalid:443", lambda: 30.0)
    try:
        if exempt:
            with pytest.raises(ClusterError, match=r"GET /thing: Cannot connect to host api.inval"):
                await connection.request("GET", "/thing")
        else:
            await connection.request("GET", "/thing")
    finally:
        await connection.close()
    assert asked == ([] if exempt else ["GET"])


async def test_a_pod_reaches_its_api_server_without_the_proxy_that_is_named_for_webhooks(
    server, monkeypatch, tmp_path
):
    url, asked = server
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "")
    (tmp_path / "token").write_text("secret")
    for token_file in (None, tmp_path / "token"):
        connection = Connection(Credentials(url, token_file=token_file))
        try:
            if token_file is None:
                with pytest.raises(ClusterError, match=r"proxy\.invalid"):
                    await connection.request("GET", "/thing")
            else:
                await connection.request("GET", "/thing")
        finally:
            await connection.close()
    assert asked == ["GET"]


@pytest.mark.parametrize(
    ("server", "is_exempt"),
    [
        ("https://10.96.0.1:443", True),
        ("https://11.0.0.1:443", False),
        ("https://192.168.0.7", True),
        ("https://192.168.0.8", False),
        ("https://[fd00::1]:443", True),
        ("https://[fe80::1]:443", False),
        ("https://10.example.com", False),
        ("https://a.svc", True),
        ("https://hooks.example.com", False),
    ],
)
def test_addresses_in_a_network_of_no_proxy_need_no_proxy(monkeypatch, server, is_exempt):
    proxy = "http://proxy.example.com:3128"
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.setenv("no_proxy", ".svc, 10.0.0.1/8,fd00::/8,192.168.0.7,10.0.0.0/99")
    assert proxy_for(server) == (None if is_exempt else proxy)


async def test_an_error_that_says_nothing_is_named_by_its_type(server):
    url, _ = server
    connection = Connection(Credentials(url), timeout_s=0.2)
    try:
        with pytest.raises(ClusterError, match=r"GET /slow: \w*TimeoutError$"):
            await connection.request("GET", "/slow")
    finally:
        await connection.close()


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"kind": "Status"},
        {"items": []},
        {"metadata": {}},
        {"metadata": []},
        {"items": [], "metadata": {}},
    ],
    ids=repr,
)
async def test_an_answer_that_is_no_list_is_an_error_of_the_cluster_and_ends_nothing(answer):
    """As of a proxy in between, which answers 200 with an object of its own."""
    app = web.Application()
    app.router.add_get("/things", lambda _: _json(answer))
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connection = connect(f"http://127.0.0.1:{runner.addresses[0][1]}", lambda: 60.0)
    try:
        for listing in (connection.list_objects, connection.list_versions):
            with pytest.raises(ClusterError, match="GET /things: the answer is no list"):
                await listing("/things", {}, 100)
    finally:
        await connection.close()
        await runner.cleanup()


async def test_of_a_list_no_more_is_kept_than_is_asked_for():
    """A page may be tens of megabytes."""
    read = []

    async def page(request: web.Request) -> web.Response:
        number = int(request.query.get("continue", 0))
        read.append(request.query["limit"])
        metadata = {"resourceVersion": "7", "continue": str(number + 1) if number < 2 else ""}
        items = [{"metadata": {"name": f"{number}-{n}"}, "spec": "x" * 1000} for n in range(2)]
        return web.json_response({"metadata": metadata, "items": items})

    app = web.Application()
    app.router.add_get("/things", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connection = connect(f"http://127.0.0.1:{runner.addresses[0][1]}", lambda: 60.0)
    try:
        found = await connection.list_objects("/things", {}, 2, lambda item: item["metadata"])
        names = [f"{number}-{n}" for number in range(3) for n in range(2)]
        assert found == ([{"name": name} for name in names], 7)
        assert read == ["2"] * 3
    finally:
        await connection.close()
        await runner.cleanup()


async def _json(answer):
    return web.json_response(answer)
