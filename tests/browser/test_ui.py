"""The pages of `trainingrun ui` in a real Chromium: all runs, one run, its logs."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import HOSTILE, Page, contrast, opened, text_of
from support.cli_server import RUNS, Server, running_server
from support.report_runs import failed_run
from support.ui_server import Asking, served
from trainingrun.client import run_page
from trainingrun.rendering import names
from trainingrun_runtime.report_page import folder
from trainingrun_runtime.store.bucket import Bucket

SCREENSHOTS = Path(__file__).resolve().parents[1] / ".artifacts" / "ui"
EVERYWHERE = "/apis/trainingrun.dev/v1alpha1/trainingruns"
PODS = "/api/v1/namespaces/team-a/pods"
SOON_S = 0.2
PATIENCE_S = 60.0


def condition(kind: str, reason: str, message: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


STATES: list[tuple[str, list[dict[str, str]]]] = [
    ("Running", []),
    ("Running", [condition("Waiting", "Hang", f"no step for 300 s: rank 1 is in read{HOSTILE}")]),
    ("Queued", [condition("Waiting", "Queued", "Kueue: insufficient quota for nvidia.com/gpu")]),
    ("Starting", [condition("Stalled", "ImageCannotBePulled", "check the image's name")]),
    ("Succeeded", [condition("Succeeded", "Done", "The training is done")]),
    ("Failed", [condition("Failed", "RestartsExhausted", "rank 6 raised RuntimeError")]),
]


def a_run(number: int) -> dict[str, Any]:
    phase, conditions = STATES[number % len(STATES)]
    status = {
        "phase": phase,
        "conditions": conditions,
        "attempt": 1,
        "seen": {"rayCluster": "c1"},
        "progress": {"step": number, "totalSteps": 1000, "percent": 5, "secondsLeft": 7200},
        "goodput": {"percent": 93},
        "cost": {"currency": "USD", "amount": 811.28},
    }
    if phase in ("Succeeded", "Failed"):
        status["completionTime"] = "2026-11-28T00:00:00Z"
    metadata = {
        "name": f"pretrain-language-model-{number:04}",
        "namespace": "team-a" if number % 2 else "vision",
        "uid": f"1a2b3c4d-{number}",
        "creationTimestamp": "2026-11-27T00:00:00Z",
        "labels": {"kueue.x-k8s.io/queue-name": "gpu-large"},
    }
    return {"metadata": metadata, "spec": {"storage": {"uri": "s3://runs/a"}}, "status": status}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """An API server with 150 runs; the folder of each is that of a run that has failed."""
    monkeypatch.setattr("trainingrun.cli.ui.pages._FRESH_S", SOON_S)
    monkeypatch.setattr("trainingrun.cli.ui.shared._SHARE", 1.0)
    bucket = Bucket.open((tmp_path / "demo-1a2b3c4d").as_uri())
    failed_run(bucket, HOSTILE)
    monkeypatch.setattr(run_page, "read", lambda _place: folder.read(bucket))
    with running_server(tmp_path, monkeypatch) as found:
        runs = [a_run(number) for number in range(150)]
        found.answers[EVERYWHERE] = [(200, {"items": runs})]
        for run in runs:
            path = RUNS.replace("team-a", run["metadata"]["namespace"])
            found.answers[f"{path}/{run['metadata']['name']}"] = [(200, run)]
        yield found


@pytest.fixture
def asking(server: Server) -> Iterator[Asking]:
    with served(everywhere=True) as found:
        yield found


async def goes(page: Page, asking: Asking, path: str) -> None:
    await page.call("Page.navigate", url=f"http://{asking.ui.host}{path}")
    await page.wait_for("Page.loadEventFired")


async def until(page: Page, expression: str) -> None:
    """Until it is true; of a page that is not there yet it is not."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    answer: dict[str, Any] = {}
    while answer.get("result", {}).get("value") is not True:
        assert asyncio.get_running_loop().time() < deadline, expression
        await asyncio.sleep(0.05)
        answer = await page.call("Runtime.evaluate", expression=f"!!({expression})")


@pytest.fixture
async def page(asking: Asking) -> Any:
    async with opened(asking.ui.link()) as found:
        await until(found, "document.getElementById('live')")
        yield found


async def names_on(page: Page) -> list[str]:
    found = await page.evaluate(
        "[...document.querySelectorAll('td:first-child a')].map(each => each.innerText.slice(-4))"
    )
    return list(found)


async def test_all_runs_are_shown_counted_and_found(page: Page, asking: Asking) -> None:
    await page.resize(1280)
    live = await text_of(page, "#live")
    assert "All 150" in live
    assert "Running 50" in live
    shown = await names_on(page)
    assert len(shown) == 100
    assert shown[0] == "0003", "what somebody has to correct"
    assert "0001" in shown[25:50], "then what hangs"
    row = await text_of(page, "tbody tr:nth-child(26)")
    for word in ("team-a", "gpu-large", "Running", "Hang", "5%", "2h", "93%", "811.28 USD"):
        assert word in row
    await page.evaluate("document.querySelector('a[rel=next]').click()")
    await until(page, "location.search === '?page=2' && document.querySelector('a[rel=prev]')")
    assert len(await names_on(page)) == 50

    await page.evaluate("document.querySelector('[name=namespace]').value = 'vision'")
    await page.evaluate("document.querySelector('[name=text]').value = 'insufficient QUOTA'")
    await page.evaluate("document.querySelector('form').requestSubmit()")
    await until(page, "document.querySelector('#live .states').innerText.includes('All 25')")
    address = await page.evaluate("location.search")
    assert address == "?namespace=vision&text=insufficient+QUOTA"
    await goes(page, asking, f"/{address}&state=Queued")
    assert len(await names_on(page)) == 25
    assert {url.split("/")[2] for url in page.requests if "//" in url} == {asking.ui.host}
    assert page.complaints == []


async def test_what_changes_is_shown_and_what_is_written_and_scrolled_stays(
    page: Page, server: Server
) -> None:
    await page.resize(1280)
    await page.evaluate("document.querySelector('[name=text]').value = 'half a wo'")
    await page.evaluate("scrollTo(0, 700)")
    run = a_run(0)
    run["metadata"]["name"] = "zz-new"
    server.answers[EVERYWHERE] = [(200, {"items": [a_run(number) for number in range(90)] + [run]})]
    await until(page, "document.getElementById('live').innerText.includes('zz-new')")
    assert await page.evaluate("scrollY") == 700
    assert await page.evaluate("document.querySelector('[name=text]').value") == "half a wo"
    server.answers[EVERYWHERE] = [(503, {"message": "etcd has no leader"})]
    await until(page, "document.getElementById('live').innerText.includes('no leader')")
    assert len(await names_on(page)) == 91, "the rest stays"


async def test_what_is_open_on_the_page_of_a_run_stays_open_while_it_is_renewed(
    page: Page, server: Server, asking: Asking
) -> None:
    name = a_run(0)["metadata"]["name"]
    path = f"/runs/vision/{name}"
    await goes(page, asking, path)
    assert await page.evaluate("document.title") == f"{name}: Running"
    sections = await page.evaluate("[...document.querySelectorAll('section')].map(each => each.id)")
    assert {"failure", "hang", "curves", "attempts", "losses", "ranks", "checkpoints"} <= set(
        sections
    )
    folds = "document.querySelectorAll('#live details')"
    before = await page.evaluate(f"{folds}[0].open = false, {folds}[1].open = true, {folds}.length")
    run = a_run(0)
    run["status"]["progress"]["step"] = 777
    run["status"]["phase"] = "Recovering"
    server.answers[f"{RUNS.replace('team-a', 'vision')}/{name}"] = [(200, run)]
    await until(page, "document.querySelector('.figures').innerText.includes('777')")
    assert await page.evaluate("document.title") == f"{name}: Recovering"
    assert await page.evaluate(f"[{folds}[0].open, {folds}[1].open, {folds}.length]") == [
        False,
        True,
        before,
    ]
    server.answers[f"{RUNS.replace('team-a', 'vision')}/{name}"] = [(404, {"message": "gone"})]
    await until(page, "document.getElementById('live').innerText.includes('not found')")


async def test_a_command_that_has_ended_is_a_sentence_above_what_it_said_last(
    page: Page, asking: Asking
) -> None:
    assert await page.evaluate("document.getElementById('away').hidden")
    asking.ui.cookie = "of another process"
    await until(page, "!document.getElementById('away').hidden")
    assert len(await names_on(page)) == 100


def prints(server: Server) -> str:
    """A run of which two pods print; the path of its logs."""
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "x", "uid": "c1"}
    pods = []
    for pod, role in (("head", names.HEAD), ("w0", names.WORKER)):
        metadata = {"name": pod, "uid": pod, "labels": {names.ROLE_LABEL: role}}
        pods.append({"metadata": {**metadata, "ownerReferences": [{**owner, "controller": True}]}})
    server.answers[PODS] = [(200, {"items": pods})]
    line = "2026-01-01T00:00:01.{:09}Z [rank {}] step {}: a batch was read{}\n"
    text = "".join(line.format(n, n % 2, n, HOSTILE if n == 50 else "") for n in range(60))
    server.answers[f"{PODS}/w0/log"] = [(200, text.encode())]
    server.answers[f"{PODS}/head/log"] = [(200, b"2026-01-01T00:00:00Z [driver] attempt 1\n")]
    return f"/runs/team-a/{a_run(1)['metadata']['name']}/logs"


async def test_logs_of_all_ranks_or_one_begin_at_their_end(
    page: Page, server: Server, asking: Asking
) -> None:
    await goes(page, asking, prints(server))
    await page.resize(1280, 400)
    lines = await text_of(page, "#live pre")
    assert "[driver] attempt 1\n[rank 0] step 0: a batch was read\n" in lines
    await goes(page, asking, f"{prints(server)}?rank=1&lines=5")
    lines = await text_of(page, "#live pre")
    assert lines.splitlines() == [f"[rank 1] step {n}: a batch was read" for n in range(51, 60, 2)]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
async def test_they_fit_are_readable_and_a_runs_text_is_text(
    page: Page, server: Server, asking: Asking, width: int, scheme: str
) -> None:
    name = a_run(1)["metadata"]["name"]
    paths = {
        "fleet": "/",
        "run": f"/runs/team-a/{name}",
        "logs": prints(server),
        "gone": "/runs/team-a/gone",
    }
    await page.resize(width)
    await page.emulate(scheme)
    for which, path in paths.items():
        await goes(page, asking, path)
        await page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
        await page.evaluate(
            "document.querySelectorAll('*').forEach(each => "
            "each.dispatchEvent(new MouseEvent('mouseover')))"
        )
        await page.screenshot(SCREENSHOTS / f"{which}-{width}-{scheme}.png")
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, which
        assert await page.evaluate("document.title") != "owned"
        for tag in ("img", "iframe", "object"):
            assert await page.evaluate(f"document.querySelectorAll('{tag}').length") == 0
        scripts = await page.evaluate(
            "[...document.querySelectorAll('script')].map(each => each.getAttribute('src'))"
        )
        assert scripts == ["/renew.js"]
        if which != "gone":
            live = json.dumps("<script>document.title='owned'</script>")
            assert await page.evaluate(
                f"document.getElementById('live').innerText.includes({live})"
            ), which
        selectors = {"fleet": (".soft", ".tag.bad", ".tag.warning", ".states a", "td a", "label")}
        for selector in (*selectors.get(which, ()), "nav a"):
            assert await contrast(page, selector) > 4.5, selector
    assert page.complaints == []
    assert {url.split("/")[2] for url in page.requests if "//" in url} == {asking.ui.host}
