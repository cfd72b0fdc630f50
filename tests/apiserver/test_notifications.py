"""A real operator tells real receivers what happens to runs of a real API server."""

import asyncio
import base64
import dataclasses
import logging
from typing import Any

import pytest

from support.operators import (
    OPERATOR_NAMESPACE,
    a_run,
    credentials_of,
    document,
    eventually,
    running,
    settings_for,
    settled,
)
from support.permissions import NOTIFICATION_RULES, OPERATOR_RULES, RUN_RULES
from support.receivers import PATH, Receiver
from support.tls import certificates
from trainingrun.api.v1alpha1 import API_VERSION, KIND
from trainingrun.cluster.live_cluster import KubernetesCluster
from trainingrun.controller import notifier
from trainingrun.controller.operator import Operator

SECRET = "trainingrun-notifications"
PAST_DEADLINE = {"activeDeadlineSeconds": 1}
"""Such a run fails by itself after a second."""


def to(*events: str, key: str = "url", form: str = "CloudEvents") -> dict[str, Any]:
    source = {"secretRef": {"name": SECRET, "key": key}}
    return {"events": list(events), "webhook": source, "format": form}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Tries that fail are repeated at once."""
    monkeypatch.setattr(notifier, "RETRY_S", (0.1, 0.2))
    monkeypatch.setattr(notifier, "PAUSE_S", 0.0)


@pytest.fixture
def new_notifying(apiserver, namespace, head):
    """Makes an operator that may send to these hosts."""

    async def make(*hosts: str, namespaces: tuple[str, ...] = ()) -> Operator:
        # The Lease is the one that the operator's roles name.
        settings = settings_for(*(namespaces or (namespace,)), lease_name="trainingrun-operator")
        reconcile = dataclasses.replace(settings.reconcile, notification_hosts=hosts)
        settings = dataclasses.replace(settings, reconcile=reconcile)
        return Operator(settings, credentials_of(apiserver), head.target)

    return make


@pytest.fixture
def addresses(apiserver, namespace):
    """Writes the Secret with addresses, by key."""

    def write(where: str = namespace, **urls: str) -> None:
        metadata = {"name": SECRET, "namespace": where}
        data = {key: base64.b64encode(url.encode()).decode() for key, url in urls.items()}
        apiserver.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})

    return write


@pytest.fixture
def warnings(apiserver, namespace):
    """Messages of the events that say that a webhook was not told."""

    def read() -> list[str]:
        events = apiserver.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [one["message"] for one in events if one["reason"] == "NotificationFailed"]

    return read


async def test_the_end_of_runs_arrives_once_after_two_errors_and_no_more_rights_are_needed(
    apiserver, namespace, kuberay, head, status, new_notifying, addresses, grant
):
    grant(RUN_RULES + NOTIFICATION_RULES, namespace)
    grant(OPERATOR_RULES, OPERATOR_NAMESPACE)
    async with Receiver(500, 500).listening() as events, Receiver().listening() as chat:
        addresses(url=events.url, chat=f"{chat.url}\n")
        receivers = [to("Failed", "Succeeded"), to("Failed", key="chat", form="Slack")]
        async with running(await new_notifying(events.allowed, chat.allowed)) as operator:
            run = apiserver.create(a_run(namespace, notify=receivers))
            await eventually(lambda: status().get("attempt") == 1)
            kuberay.starts(run)
            head.document = document(step=7, state="Succeeded")
            await eventually(lambda: len(events.received) == 3)
            failed = apiserver.create(a_run(namespace, "broken", notify=receivers, **PAST_DEADLINE))
            await eventually(lambda: len(events.received) == 4 and chat.received)
            for name in ("digits", "broken"):
                await eventually(lambda name=name: not waiting(status(name)))
                operator.queue.add((namespace, name))
            await settled(operator, (namespace, "broken"))
        async with running(await new_notifying(events.allowed, chat.allowed)) as operator:
            await settled(operator, (namespace, "digits"))
            await settled(operator, (namespace, "broken"))
    uids = [one["metadata"]["uid"] for one in (run, failed)]
    succeeded, broken = (f"{uids[0]}/succeeded", f"{uids[1]}/failed")
    assert [one.key for one in events.received] == [succeeded] * 3 + [broken]
    assert {one.content_type for one in events.received} == {"application/cloudevents+json"}
    event, last = events.bodies[2], events.bodies[3]
    assert event == events.bodies[0]
    assert (event["id"], event["type"]) == (succeeded, "dev.trainingrun.run.succeeded")
    assert event["source"] == f"/apis/{API_VERSION}/namespaces/{namespace}/trainingruns/digits"
    assert event["data"]["phase"] == "Succeeded"
    assert (event["data"]["attempt"], event["data"]["step"]) == (1, 7)
    assert (last["type"], last["data"]["reason"]) == (
        "dev.trainingrun.run.failed",
        "DeadlineExceeded",
    )
    (text,) = chat.received
    assert (text.key, text.content_type) == (broken, "application/json")
    assert text.body["text"].startswith(f"TrainingRun {namespace}/broken: Failed (Deadline")


def waiting(status: dict[str, Any]) -> list[str]:
    """What the status says that still waits to be sent."""
    told = status.get("seen", {}).get("notified", {"": {"ids": {"": "not seen yet"}}})
    return [name for one in told.values() for name, since in one.get("ids", {}).items() if since]


async def test_a_receiver_that_hangs_holds_up_neither_others_nor_reconciles(
    apiserver, namespace, status, new_notifying, addresses
):
    other = apiserver.new_namespace()
    async with Receiver(0).listening() as hangs, Receiver().listening() as well:
        addresses(url=hangs.url)
        addresses(other, url=well.url)
        operator = await new_notifying(hangs.allowed, well.allowed, namespaces=(namespace, other))
        async with running(operator):
            apiserver.create(a_run(namespace, notify=[to("Failed")], **PAST_DEADLINE))
            await eventually(lambda: hangs.hanging)
            apiserver.create(a_run(other, notify=[to("Failed")], **PAST_DEADLINE))
            await eventually(lambda: well.received)
            apiserver.create(a_run(namespace, "next"))
            await eventually(lambda: status("next").get("attempt") == 1)
            assert (hangs.hanging, len(hangs.received)) == (1, 1), "and still hangs"


async def test_another_leader_repeats_what_the_status_does_not_have_under_the_same_id(
    apiserver, namespace, status, new_notifying, addresses, monkeypatch
):
    died, real = asyncio.Event(), KubernetesCluster.write_status

    async def dies(self, run, written, version):
        if not waiting(written.to_dict()) and written.completion_time:
            died.set()
            await asyncio.Event().wait()  # as if the process were gone: it never comes back
        await real(self, run, written, version)

    async with Receiver().listening() as receiver:
        addresses(url=receiver.url)
        with monkeypatch.context() as patched:
            patched.setattr(KubernetesCluster, "write_status", dies)
            async with running(await new_notifying(receiver.allowed)):
                apiserver.create(a_run(namespace, notify=[to("Failed")], **PAST_DEADLINE))
                async with asyncio.timeout(60):
                    await died.wait()
        assert waiting(status()) == ["failed"]
        async with running(await new_notifying(receiver.allowed)) as operator:
            await eventually(lambda: not waiting(status()))
            await settled(operator, (namespace, "digits"))
    first, second = receiver.received
    assert first == second
    assert first.key.endswith("/failed")


async def test_a_host_that_is_not_allowed_gets_no_connection_and_no_address_is_told(
    apiserver, namespace, status, new_notifying, addresses, warnings, caplog
):
    caplog.set_level(logging.DEBUG)
    async with Receiver().listening() as secret, Receiver(403).listening() as refuses:
        addresses(url=secret.url, refuses=refuses.url, nobody="http://127.0.0.1:1/path-of-nobody")
        receivers = [to("Failed", key=key) for key in ("url", "refuses", "nobody", "missing")]
        operator = await new_notifying(
            refuses.allowed, "http://127.0.0.1:1", "*.example.com", f"127.0.0.1:{secret.port}"
        )
        async with running(operator):
            apiserver.create(a_run(namespace, notify=receivers, **PAST_DEADLINE))
            messages = await eventually(lambda: len(warnings()) >= 4 and "\n".join(warnings()))
        run = apiserver.get(API_VERSION, KIND, "digits", namespace)
        events = apiserver.request("GET", f"/api/v1/namespaces/{namespace}/events")
    assert secret.received == []
    assert "to which this operator sends nothing" in messages
    assert "its receiver answers 403; correct the address in the Secret; it is not sent" in messages
    assert "its receiver cannot be reached" in messages
    assert f"Secret {SECRET} has no key missing; add it" in messages
    log = "\n".join(f"{one.getMessage()} {one.exc_text or ''}" for one in caplog.records)
    for place in (str(run), str(events), log):
        for part in (PATH, "path-of-nobody", f"127.0.0.1:{secret.port}", "127.0.0.1:1/"):
            assert part not in place


async def test_an_operator_that_sends_nothing_says_so(
    apiserver, namespace, status, new_notifying, addresses, warnings
):
    async with Receiver().listening() as receiver:
        addresses(url=receiver.url)
        async with running(await new_notifying()) as operator:
            apiserver.create(a_run(namespace, notify=[to("Failed")], **PAST_DEADLINE))
            await eventually(lambda: status().get("phase") == "Failed")
            await settled(operator, (namespace, "digits"))
            (message,) = warnings()
    assert "notifications.allowedHosts" in message
    assert receiver.received == []


async def test_a_receiver_with_tls_is_told_only_if_its_certificate_is_trusted(
    apiserver, namespace, new_notifying, addresses, warnings, tmp_path, monkeypatch
):
    tls = certificates(tmp_path)
    async with Receiver().listening(tls) as receiver:
        addresses(url=f"https://localhost:{receiver.port}{PATH}")
        allowed = f"localhost:{receiver.port}"
        async with running(await new_notifying(allowed)):
            apiserver.create(a_run(namespace, notify=[to("Failed")], **PAST_DEADLINE))
            (message,) = await eventually(warnings)
        assert "the certificate of its receiver" in message
        assert receiver.received == []
        monkeypatch.setenv("SSL_CERT_FILE", str(tls.authority))
        async with running(await new_notifying(allowed)):
            await eventually(lambda: receiver.received)
