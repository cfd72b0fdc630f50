"""The notifier connects to what the platform has named alone, and no address gets out of it."""

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from yarl import URL

from support.receivers import PATH, Receiver
from trainingrun.cluster.api_client import ClusterError, Forbidden
from trainingrun.controller import notifier
from trainingrun.controller.notifier import Notifier, is_allowed
from trainingrun.reconciling.model import Delivery, Notice

Make = Callable[..., Notifier]
RUN = ("team-a", "digits")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short."""
    monkeypatch.setattr(notifier, "RETRY_S", (0.01, 0.02))
    monkeypatch.setattr(notifier, "PAUSE_S", 0.0)


def a_notice(number: int = 1, key: str = "url") -> Notice:
    content = "application/cloudevents+json"
    return Notice(f"hooks/{key}", "hooks", key, f"uid/loss-{number}", content, {"number": number})


def secret(**urls: str) -> dict[str, Any]:
    return {"data": {key: base64.b64encode(url.encode()).decode() for key, url in urls.items()}}


@pytest.fixture
async def new_notifier() -> AsyncIterator[Make]:
    made: list[Notifier] = []

    def make(found: Any, *hosts: str, **options: Any) -> Notifier:
        async def read(namespace: str, name: str) -> Any:
            if isinstance(found, Exception):
                raise found
            return found(namespace) if callable(found) else found

        made.append(Notifier(read, hosts, **options))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def until(probe: Callable[[], Any]) -> Any:
    async with asyncio.timeout(30):
        while not (found := probe()):  # noqa: ASYNC110 - another task changes it
            await asyncio.sleep(0.01)
    return found


async def how_it_fares(sender: Notifier, key: str = "url", tries: int = 1) -> Delivery:
    sender.want(RUN, [a_notice(key=key)])

    def found() -> Delivery | None:
        delivery = sender.deliveries(RUN).get(f"hooks/{key}")
        return delivery if delivery is not None and delivery.tries >= tries else None

    delivery: Delivery = await until(found)
    return delivery


@pytest.mark.parametrize(
    ("address", "entry", "allowed"),
    [
        ("https://hooks.example.com/a", "hooks.example.com", True),
        ("https://HOOKS.example.com:443/a", "hooks.example.com", True),
        ("https://hooks.example.com:8443/", "hooks.example.com:8443", True),
        ("https://a.b.example.com/", "*.example.com", True),
        ("http://hooks.svc/", "http://hooks.svc", True),
        ("http://hooks.svc:8080/", "http://hooks.svc:8080", True),
        ("http://hooks.example.com/", "hooks.example.com", False),
        ("https://hooks.svc/", "http://hooks.svc", False),
        ("https://hooks.example.com:22/", "hooks.example.com", False),
        ("https://hooks.example.com/", "hooks.example.com:8443", False),
        ("https://example.com/", "*.example.com", False),
        ("https://evilexample.com/", "*.example.com", False),
        ("https://hooks.example.com.evil.example/", "hooks.example.com", False),
        ("https://hooks.example.com@evil.example/", "hooks.example.com", False),
        ("https://evil.example#hooks.example.com", "hooks.example.com", False),
        ("https://evil.example\\@hooks.example.com/", "evil.example", False),
        ("https://169.254.169.254/latest", "hooks.example.com", False),
        ("https://[::1]/", "hooks.example.com", False),
    ],
)
def test_only_hosts_that_are_named_are_allowed(address: str, entry: str, allowed: bool) -> None:
    try:
        url = URL(address)
    except ValueError:
        assert not allowed
        return
    assert is_allowed(url, ["other.example.net", entry]) is allowed


async def test_the_secret_is_read_for_each_try_and_not_kept(new_notifier: Make) -> None:
    async with Receiver(503).listening() as first, Receiver().listening() as second:
        urls = [first.url, second.url]
        sender = new_notifier(lambda _: secret(url=urls.pop(0)), first.allowed, second.allowed)
        assert (await how_it_fares(sender, tries=2)).outcome == "delivered"
        assert (len(first.received), len(second.received)) == (1, 1)
        assert first.received == second.received
        assert (first.received[0].key, first.received[0].path) == ("uid/loss-1", PATH)
        await until(lambda: not sender._tasks and not sender._resting)
        sender.want(RUN, [a_notice()])
        assert not sender._tasks, "what was delivered is not sent again"
        assert sender.deliveries(RUN)["hooks/url"].outcome == "delivered"


async def test_a_format_that_is_corrected_is_that_of_the_next_try(new_notifier: Make) -> None:
    async with Receiver(503).listening() as refusing, Receiver().listening() as taking:
        urls = [refusing.url]
        sender = new_notifier(lambda _: secret(url=urls[-1]), refusing.allowed, taking.allowed)
        await how_it_fares(sender)
        sender.want(RUN, [replace(a_notice(), body={"text": "a"})])
        urls.append(taking.url)
        await until(lambda: taking.received)
        assert taking.received[0].body == {"text": "a"}


@pytest.mark.parametrize(
    ("status", "outcome", "says"),
    [
        (204, "delivered", ""),
        (408, "failed", "its receiver answers 408"),
        (429, "failed", "its receiver answers 429"),
        (503, "failed", "its receiver answers 503"),
        (404, "refused", "correct the address in the Secret"),
        (302, "refused", "redirects are not followed"),
    ],
)
async def test_the_status_alone_decides(
    new_notifier: Make, status: int, outcome: str, says: str
) -> None:
    async with Receiver().listening() as elsewhere:
        target = {"Location": elsewhere.url} if status == 302 else {}
        async with Receiver(*[status] * 9, headers=target).listening() as receiver:
            sender = new_notifier(secret(url=receiver.url), receiver.allowed, elsewhere.allowed)
            delivery = await how_it_fares(sender)
        assert delivery.outcome == outcome
        assert says in delivery.problem
        assert elsewhere.received == []


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "there is no Secret hooks; create it"),
        ({}, "Secret hooks has no key url; add it"),
        ({"data": {"url": "%%%"}}, "holds no address"),
        ({"data": {"url": base64.b64encode(b"\xff").decode()}}, "holds no address"),
        (secret(url="file:///etc/passwd"), "holds no address"),
        (secret(url="https://:99999999/"), "holds no address"),
        (secret(url="https://hidden-host.example/hidden"), "holds an address with a scheme, host"),
        (secret(url="http://127.0.0.1:1/hidden"), "cannot be reached"),
        (Forbidden("/hidden"), "the operator's roles do not let it read Secret hooks"),
        (ClusterError("/hidden"), "the API server does not answer"),
        (RuntimeError("/hidden"), "the operator has a fault (RuntimeError)"),
    ],
    ids=lambda part: str(part)[:30],
)
async def test_what_is_wrong_is_said_without_the_address(
    new_notifier: Make, caplog: pytest.LogCaptureFixture, found: Any, says: str
) -> None:
    caplog.set_level(logging.DEBUG)
    delivery = await how_it_fares(new_notifier(found, "http://127.0.0.1:1"))
    assert delivery.outcome == "failed"
    assert says in delivery.problem
    assert "hidden" not in delivery.problem + caplog.text


async def test_an_answer_without_an_end_is_not_read(new_notifier: Make) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
                await writer.drain()
                sent += 65536
        except OSError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        url, allowed = f"http://127.0.0.1:{port}/", f"http://127.0.0.1:{port}"
        delivery = await how_it_fares(new_notifier(secret(url=url), allowed))
    assert delivery.outcome == "delivered"
    assert sent < 2**24, "what fits the buffers of both sockets"


async def test_a_silent_receiver_is_given_up_in_time(
    new_notifier: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "TIMEOUT_S", 0.2)
    async with Receiver(0).listening() as receiver:
        delivery = await how_it_fares(new_notifier(secret(url=receiver.url), receiver.allowed))
    assert "does not answer within 0.2 s" in delivery.problem


async def test_a_silent_api_server_is_not_told_as_a_silent_receiver(
    new_notifier: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "TIMEOUT_S", 0.2)

    async def read(namespace: str, name: str) -> Any:
        await asyncio.Event().wait()

    sender = new_notifier(None)
    sender._secret = read
    delivery = await how_it_fares(sender)
    assert delivery.problem == "the API server does not answer with Secret hooks"


async def test_one_delivery_of_a_namespace_is_under_way_and_other_namespaces_go_on(
    new_notifier: Make,
) -> None:
    async with Receiver(*[0] * 9).listening() as hangs, Receiver().listening() as well:
        sender = new_notifier(
            lambda namespace: secret(url=hangs.url if namespace == "slow" else well.url),
            hangs.allowed,
            well.allowed,
        )
        for number in range(100):
            sender.want(("slow", f"run-{number}"), [a_notice(number)])
        await until(lambda: hangs.hanging)
        for number in range(20):
            sender.want((f"team-{number}", "run"), [a_notice(number)])
        await until(lambda: len(well.received) == 20)
        assert len(hangs.received) == 1


async def test_no_more_than_a_few_are_under_way_in_all(
    new_notifier: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "MOST_AT_ONCE", 3)
    async with Receiver(*[0] * 3).listening() as receiver:
        sender = new_notifier(secret(url=receiver.url), receiver.allowed)
        for number in range(10):
            sender.want((f"team-{number}", "run"), [a_notice(number)])
        await until(lambda: receiver.hanging == 3)
        assert len(sender._tasks) == 3


async def test_a_receiver_gets_the_next_notice_only_once_the_former_is_recorded(
    new_notifier: Make,
) -> None:
    changed: list[tuple[str, str]] = []
    async with Receiver().listening() as receiver:
        sender = new_notifier(
            secret(url=receiver.url),
            receiver.allowed,
            on_change=lambda *run: changed.append(run),
        )
        assert (await how_it_fares(sender)).outcome == "delivered"
        assert changed == [RUN]
        sender.want(RUN, [a_notice(2)])
        assert sender.deliveries(RUN) == {}
        await until(lambda: len(receiver.received) == 2)
        sender.forget(RUN)
        assert sender.deliveries(RUN) == {}


async def test_what_is_not_wanted_any_more_is_not_tried_again(
    new_notifier: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "RETRY_S", (60.0, 60.0))
    async with Receiver(503, 503).listening() as receiver:
        sender = new_notifier(secret(url=receiver.url), receiver.allowed)
        await how_it_fares(sender)
        superseded = sender._lanes[RUN]["hooks/url"]
        sender.want(RUN, [a_notice(2)])
        assert superseded.timer is not None
        assert (superseded.timer.cancelled(), superseded.wanted) == (True, False)
        await until(lambda: sender.deliveries(RUN))
        of_a_run_that_is_gone = sender._lanes[RUN]["hooks/url"]
        sender.forget(RUN)
        assert of_a_run_that_is_gone.timer is not None
        assert of_a_run_that_is_gone.timer.cancelled()
        assert not of_a_run_that_is_gone.wanted


async def test_nothing_is_sent_by_one_that_does_not_lead_or_is_closed(new_notifier: Make) -> None:
    async with Receiver().listening() as receiver:
        follower = new_notifier(secret(url=receiver.url), receiver.allowed, may_act=lambda: False)
        assert (await how_it_fares(follower)).outcome == "failed"
        waits = asyncio.Event()

        async def late(namespace: str, name: str) -> Any:
            await waits.wait()
            return secret(url=receiver.url)

        closed = Notifier(late, [receiver.allowed])
        closed.want(RUN, [a_notice()])
        await closed.close()
        waits.set()
        await asyncio.sleep(0)
        assert not closed._tasks
        assert receiver.received == []
