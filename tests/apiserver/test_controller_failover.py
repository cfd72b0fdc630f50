"""What is gone is found, and a watch that says nothing is no news that nothing happens."""

import time
from urllib.parse import urlsplit

from support.operators import (
    Proxy,
    a_ray_job,
    a_run,
    document,
    eventually,
    running,
    watching,
)

HALF_OPEN_S = 10.0
"""Within which a watch that is open and says nothing is noticed."""


async def test_a_ray_job_that_is_really_gone_ends_its_attempt(
    apiserver, namespace, new_operator, kuberay, head, status
):
    operator = await new_operator()
    async with running(operator):
        run = apiserver.create(a_run(namespace))
        await eventually(lambda: status().get("attempt") == 1)
        kuberay.starts(run)
        head.document = document(step=5, totalSteps=100, resumedFromStep=0)
        await eventually(lambda: status().get("phase") == "Running")
        apiserver.request("DELETE", apiserver.path(kuberay.job("digits-1")))
        await eventually(lambda: status()["attempts"][0]["outcome"] == "Lost")


async def test_a_watch_that_is_open_and_says_nothing_is_noticed_within_ten_seconds(
    apiserver, namespace
):
    run = apiserver.create(a_run(namespace))
    proxy = Proxy(urlsplit(apiserver.url).port)
    await proxy.up()
    async with watching(apiserver, namespace, port=proxy.port) as cluster:
        proxy.silence()
        apiserver.create(a_ray_job(run))
        began = time.monotonic()
        await eventually(lambda: cluster.stores.ray_jobs.of_run((namespace, "digits")))
        took = time.monotonic() - began
    await proxy.down()
    assert took <= HALF_OPEN_S + 2, f"{took:.1f} s"  # and to be opened anew
