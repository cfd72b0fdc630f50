"""What webhooks are told follows from the status: each thing once, also after any restart."""

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from support.builders import OTHER_UID, T0, UID, a_progress, at, unix
from support.reconciled import a_training_run, as_kept, wanting
from trainingrun.api.status import RunStatus
from trainingrun.reconciling import Observed, Plan, ReconcileSettings, plan
from trainingrun.reconciling.model import Delete, Delivery, NodePrice, Notice
from trainingrun.rendering import RenderSettings

ALLOWED = ReconcileSettings(notification_hosts=("hooks.example.com",))
WEBHOOK = "trainingrun-notifications/url"
EVERYTHING = ("Failed", "Hang", "Preempted", "Succeeded", "BudgetWarning")
DAY_S = 86400.0


def notify(*events: str, key: str = "url", form: str = "CloudEvents") -> dict[str, Any]:
    source = {"name": "trainingrun-notifications", "key": key}
    return {
        "events": list(events or EVERYTHING),
        "webhook": {"secretRef": source},
        "format": form,
    }


TOLD = {"notify": [notify()]}
LOSES_A_POD = {"kind": "Preempted", "time": unix(60), "message": "drained", "pod": "worker-1"}
HANG = {"time": unix(60), "seconds": 20.0, "message": "rank 1 hangs", "ranks": []}


def planned(observed: Observed, seconds: float, settings: ReconcileSettings = ALLOWED) -> Plan:
    now = T0 + timedelta(seconds=seconds)
    found = plan(observed, RenderSettings(), settings, now)
    if found.confirm:
        return planned(replace(observed, confirmed=True), seconds, settings)
    assert plan(as_kept(observed), RenderSettings(), settings, now) == found
    return found


def then(
    observed: Observed, seconds: float, settings: ReconcileSettings = ALLOWED, **changes: Any
) -> Observed:
    """What is observed once that plan's status was written, as JSON with sorted keys."""
    written = json.loads(
        json.dumps(planned(observed, seconds, settings).status.to_dict(), sort_keys=True)
    )
    run = observed.run.model_copy(update={"status": RunStatus.model_validate(written)})
    return replace(observed, run=run, **changes)


def training(**spec: Any) -> Observed:
    """A run that trains, whose status has been written with its receivers."""
    return then(wanting(a_training_run(), **{**TOLD, **spec}), 31)


def lost(*numbers: int, **document: Any) -> Any:
    return a_progress(records=[{**LOSES_A_POD, "number": n} for n in numbers], **document)


def succeeded(observed: Observed) -> Observed:
    return replace(observed, progress=a_progress(state="Succeeded", step=100))


def notices(observed: Observed, seconds: float) -> tuple[Notice, ...]:
    found = planned(observed, seconds).notices
    assert found is not None
    return found


def ids(observed: Observed, seconds: float) -> list[str]:
    return [one.id.removeprefix(f"{UID}/") for one in notices(observed, seconds)]


def delivered(observed: Observed, seconds: float) -> Observed:
    """What is observed once the planned notices were delivered and the status says so."""
    done = {one.webhook: Delivery(one.id, "delivered") for one in notices(observed, seconds)}
    return then(replace(then(observed, seconds), deliveries=done), seconds, deliveries={})


def test_the_end_is_told_once_whatever_is_reconciled_again():
    ended = succeeded(training())
    assert ids(ended, 90) == ["succeeded"]
    restarted = then(ended, 90)
    assert ids(restarted, 91) == ids(restarted, 3600) == ["succeeded"], "until it is delivered"
    known = delivered(restarted, 3601)
    assert ids(known, 3602) == ids(known, 9 * DAY_S) == []


@pytest.mark.parametrize("finalizers", [["example.org/x"], ["orphan"]])
def test_a_run_that_is_deleted_is_told_of_no_more_while_a_finalizer_holds_it(
    finalizers: list[str],
) -> None:
    ended = then(succeeded(training()), 90)
    assert ids(ended, 91) == ["succeeded"]
    gone = {"deletion_timestamp": at(92), "finalizers": finalizers}
    metadata = ended.run.metadata.model_copy(update=gone)
    deleted = replace(ended, run=ended.run.model_copy(update={"metadata": metadata}))
    assert ids(deleted, 95) == []


def test_a_restart_between_delivery_and_record_sends_the_same_id_again():
    ended = then(succeeded(training()), 90)
    (first,) = notices(ended, 91)
    # The delivery is known to the former process alone.
    (again,) = notices(ended, 120)
    assert again == first
    assert first.body["id"] == first.id == f"{UID}/succeeded"


def test_a_cloud_event_says_what_has_happened():
    (notice,) = notices(succeeded(training(budget={"amount": 5})), 90)
    assert notice.content_type == "application/cloudevents+json"
    event = dict(notice.body)
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": f"{UID}/succeeded",
        "source": "/apis/trainingrun.dev/v1alpha1/namespaces/team-a/trainingruns/digits",
        "type": "dev.trainingrun.run.succeeded",
        "subject": "digits",
        "time": at(90),
        "datacontenttype": "application/json",
    }
    assert {name: data[name] for name in data if name != "cost"} == {
        "namespace": "team-a",
        "name": "digits",
        "uid": UID,
        "phase": "Succeeded",
        "reason": "Done",
        "message": "The training is done",
        "attempt": 1,
        "step": 100,
    }
    assert data["cost"]["unit"] == "worker"


def test_a_failure_is_told_with_the_reason_of_its_condition():
    failure = {"kind": "Application", "type": "ValueError", "message": "bad"}
    broken = replace(
        training(failures={"maxRestarts": 0}),
        progress=a_progress(state="Failed", failure=failure),
    )
    (notice,) = notices(broken, 90)
    assert notice.body["type"] == "dev.trainingrun.run.failed"
    assert notice.body["data"]["reason"] == "RestartsExhausted"
    assert "bad" in notice.body["data"]["message"]


@pytest.mark.parametrize("state", ["Succeeded", "Failed"])
def test_an_end_is_told_by_the_condition_that_says_so_and_never_by_the_absence_of_one(state: str):
    failure = {"kind": "Application", "message": "bad"}
    told = {"state": state, "failure": failure if state == "Failed" else None}
    ended = then(
        replace(training(failures={"maxRestarts": 0}), progress=a_progress(**told)),
        90,
        progress=None,
    )
    assert ids(ended, 91) == [state.lower()]
    readable = [one for one in ended.run.status.conditions if one.type != state]
    status = ended.run.status.model_copy(update={"conditions": readable})
    unread = replace(ended, run=ended.run.model_copy(update={"status": status}))
    assert ids(unread, 91) == []


def test_a_loss_is_told_once_it_is_settled_and_before_the_end():
    once = then(replace(training(), progress=lost(1)), 60)
    soon = planned(once, 70)
    assert soon.notices == ()
    assert soon.requeue_after_s is not None
    assert soon.requeue_after_s <= 20
    assert ids(once, 91) == ["loss-1"]
    ended = then(replace(once, progress=lost(1, state="Succeeded", step=100)), 75)
    assert ids(ended, 76) == ["loss-1"], "nothing more is learned about it"
    assert ids(delivered(ended, 76), 77) == ["succeeded"]


def hangs(*numbers: int) -> Any:
    record = {"kind": "Hang", "message": "rank 1", "pod": "worker-2"}
    return a_progress(records=[{**record, "number": n, "time": unix(60 + n)} for n in numbers])


def test_losses_are_told_in_their_order_one_after_the_other():
    first = then(replace(training(), progress=hangs(1)), 100)
    many = then(replace(first, progress=hangs(*range(1, 13))), 101)
    told = []
    while waiting := ids(many, 200):
        told += waiting
        many = delivered(many, 200)
    assert told == [*(f"loss-{number}" for number in range(1, 13)), "failed"]


@pytest.mark.parametrize("records", [(), (1,)], ids=["Report", "Restart"])
def test_a_hang_is_told_once_whether_or_not_its_workers_are_restarted(records: tuple[int, ...]):
    hung = then(replace(training(), progress=a_progress(hang=HANG)), 61)
    assert ids(hung, 62) == [f"hang-{at(60)}"]
    hung = delivered(hung, 62)
    restarted = [
        {"number": n, "kind": "Hang", "time": unix(63), "message": "rank 1", "pod": "worker-2"}
        for n in records
    ]
    again = then(replace(hung, progress=a_progress(records=restarted, hang=HANG)), 64)
    assert ids(again, 200) == [], "its restart is no second one"
    later = {**HANG, "time": unix(300)}
    another = then(replace(again, progress=a_progress(records=restarted, hang=later)), 301)
    assert ids(another, 302) == [f"hang-{at(300)}"]


def test_a_hang_that_still_waits_is_told_as_the_loss_that_followed_it_once_there_is_another():
    restarted = [
        {"number": 1, "kind": "Hang", "time": unix(63), "message": "rank 1", "pod": "worker-2"}
    ]
    hung = then(replace(training(), progress=a_progress(hang=HANG)), 61)
    known = then(replace(hung, progress=a_progress(records=restarted, hang=HANG)), 64)
    assert ids(known, 100) == [f"hang-{at(60)}"]
    later = a_progress(records=restarted, hang={**HANG, "time": unix(300)})
    both = then(replace(known, progress=later), 301)
    assert ids(both, 302) == ["loss-1"]
    assert ids(delivered(both, 302), 400) == [f"hang-{at(300)}"]
    told = {WEBHOOK: Delivery(f"{UID}/hang-{at(60)}", "delivered")}
    once = then(replace(known, progress=later, deliveries=told), 301, deliveries={})
    assert ids(once, 302) == [f"hang-{at(300)}"], "it was delivered just before"


def test_a_hang_that_was_over_before_an_operator_saw_it_is_told_too():
    records = [
        {"number": n, "kind": "Hang", "time": unix(time), "message": "rank 1", "pod": "worker-2"}
        for n, time in ((1, 100), (2, 200))
    ]
    latest = {**HANG, "time": unix(190)}
    both = then(replace(training(), progress=a_progress(records=records, hang=latest)), 400)
    assert ids(both, 401) == [f"hang-{at(190)}"]
    assert ids(delivered(both, 401), 440) == ["loss-1"]


def test_what_happened_before_a_receiver_was_named_is_not_sent_to_it():
    before = then(replace(a_training_run(), progress=lost(1)), 60)
    named = then(wanting(before, **TOLD), 61, progress=lost(1))
    assert ids(named, 200) == []
    assert ids(then(replace(named, progress=lost(1, state="Succeeded")), 90), 91) == ["succeeded"]
    ended = then(succeeded(a_training_run()), 90)
    assert ids(then(wanting(ended, **TOLD), 100), 101) == []


def test_what_happens_while_a_receiver_is_named_is_sent_to_it():
    assert ids(succeeded(wanting(a_training_run(), **TOLD)), 90) == ["succeeded"]


def test_a_receiver_is_told_of_its_events_alone_and_not_later_of_what_it_had_not_asked_for():
    several = [notify("Failed"), notify("Preempted", key="losses")]
    once = then(replace(training(notify=several), progress=lost(1)), 60)
    assert [(one.key, one.id) for one in notices(once, 100)] == [("losses", f"{UID}/loss-1")]
    more = [notify("Failed", "Preempted"), notify("Preempted", key="losses")]
    assert {one.key for one in notices(wanting(once, notify=more), 101)} == {"losses"}


def test_a_budget_is_warned_of_at_nine_tenths_and_when_it_is_spent():
    def costs(spent: float, observed: Observed) -> Observed:
        seen = {**observed.run.status.seen, "meter": {"spent": spent}}
        status = observed.run.status.model_copy(update={"seen": seen})
        return replace(observed, run=observed.run.model_copy(update={"status": status}))

    cheap = training(budget={"amount": 10, "action": "Warn"})
    assert ids(costs(8.9, cheap), 60) == []
    near = then(costs(9.1, cheap), 60)
    (notice,) = notices(near, 61)
    assert notice.body["data"]["reason"] == "BudgetNearlySpent"
    assert notice.body["data"]["message"] == "The run has cost 9.10 USD of its budget of 10.00 USD"
    assert notice.body["time"] == at(60)
    known = delivered(near, 61)
    assert ids(costs(9.5, known), 62) == []
    assert ids(costs(10.0, known), 63) == ["BudgetSpent-10.0"]
    larger = wanting(known, **TOLD, budget={"amount": 11, "action": "Warn"})
    assert ids(costs(10.0, larger), 63) == ["BudgetNearlySpent-11.0"]


def test_time_alone_brings_the_warnings_of_a_budget():
    price = ReconcileSettings(
        notification_hosts=ALLOWED.notification_hosts,
        prices=(NodePrice(labels={"gpu": "h100"}, per_hour=10.0),),
    )
    seen = wanting(a_training_run(), **TOLD, budget={"amount": 10, "action": "Warn"})
    nodes = {name: replace(node, labels={"gpu": "h100"}) for name, node in seen.nodes.items()}
    costs, told, seconds = replace(seen, nodes=nodes), [], 31.0
    for _ in range(50):
        found = planned(costs, seconds, price)
        told += [one.body["data"]["reason"] for one in found.notices or ()]
        costs = then(costs, seconds, price)
        done = {one.webhook: Delivery(one.id, "delivered") for one in found.notices or ()}
        costs = then(replace(costs, deliveries=done), seconds, price, deliveries={})
        seconds += found.requeue_after_s or 60.0
    assert told == ["BudgetNearlySpent", "BudgetSpent"]


PROBLEM = "its receiver answers 503"


def tried(observed: Observed, outcome: Any = "failed", tries: int = 1) -> Observed:
    found = Delivery(f"{UID}/succeeded", outcome, PROBLEM, tries)
    return replace(observed, deliveries={WEBHOOK: found})


def told_of(observed: Observed, seconds: float) -> list[str]:
    events = planned(observed, seconds).events
    return [event.message for event in events if event.reason == "NotificationFailed"]


def test_an_event_says_that_a_webhook_is_not_told_once_it_has_failed_three_times():
    ended = then(succeeded(training()), 90)
    assert told_of(tried(ended, tries=2), 100) == []
    (message,) = told_of(tried(ended, tries=3), 120)
    assert message == (
        "The webhook in key url of Secret trainingrun-notifications was not told of succeeded: "
        "its receiver answers 503; it is sent again for 24 hours"
    )
    known = then(tried(ended, tries=3), 120)
    assert told_of(tried(known, tries=4), 130) == [], "it is said already"
    assert told_of(tried(known, tries=3), 130) == [], "also after a restart"
    assert ids(tried(known, tries=4), 131) == ["succeeded"]


def test_what_cannot_be_delivered_is_given_up_after_a_day_or_once_it_is_refused():
    ended = then(succeeded(training()), 90)
    late = tried(ended, tries=30)
    assert ids(late, 89 + DAY_S) == ["succeeded"]
    assert ids(ended, 91 + DAY_S) == ["succeeded"], "after a day without an operator it is tried"
    for given_up, seconds in ((late, 91 + DAY_S), (tried(ended, "refused"), 100)):
        (message,) = told_of(given_up, seconds)
        assert message.endswith("its receiver answers 503; it is not sent again")
        after = then(given_up, seconds)
        assert ids(after, seconds) == []
        assert told_of(after, seconds) == []


def test_how_a_notice_of_a_former_run_of_this_name_fared_says_nothing_of_this_one():
    ended = then(succeeded(training()), 90)
    former = Delivery(f"{OTHER_UID}/succeeded", "delivered")
    assert ids(replace(ended, deliveries={WEBHOOK: former}), 91) == ["succeeded"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (ReconcileSettings(), "set notifications.allowedHosts of its chart"),
        (
            replace(ALLOWED, notification_secret_names=("a", "b")),
            "keep the address in Secret a or b, or have its administrators add the name",
        ),
    ],
    ids=["off", "another Secret"],
)
def test_what_the_operator_may_not_send_is_said_once_and_not_kept(
    settings: ReconcileSettings, says: str
):
    begun = wanting(a_training_run(), **TOLD)
    (event,) = planned(begun, 31, settings).events
    assert (event.type, event.reason) == ("Warning", "NotificationFailed")
    assert says in event.message
    ended = then(succeeded(then(begun, 31, settings)), 90, settings)
    found = planned(ended, 91, settings)
    assert (found.notices, found.events) == ((), ())
    assert ids(ended, 92) == [], "what happened while it was off is not sent later"


def test_a_run_that_waits_to_be_told_of_is_not_deleted_by_its_time_to_live():
    ended = then(succeeded(training(ttlSecondsAfterFinished=0)), 90)
    gone = replace(ended, ray_jobs=(), ray_clusters=(), pods=(), confirmed=True)

    def deletes(observed: Observed) -> bool:
        return any(
            isinstance(action, Delete) and action.ref.kind == "TrainingRun"
            for action in planned(observed, 100).actions
        )

    assert not deletes(gone)
    done = replace(gone, deliveries={WEBHOOK: Delivery(f"{UID}/succeeded", "delivered")})
    assert deletes(done)
    silent = then(succeeded(training(ttlSecondsAfterFinished=0, notify=[])), 90)
    assert deletes(replace(silent, ray_jobs=(), ray_clusters=(), pods=(), confirmed=True))


def test_bookkeeping_that_is_lost_repeats_nothing():
    ended = then(succeeded(training()), 90)
    status = ended.run.status.model_copy(update={"seen": {"notified": "x"}})
    lost_memory = replace(ended, run=ended.run.model_copy(update={"status": status}))
    assert ids(lost_memory, 91) == []


def test_hostile_text_stays_text():
    message = '<!channel> & <https://evil.example|free GPUs>\n"}\x1b[31m\udce4' + "x" * 9000
    failure = {"kind": "Application", "type": "ValueError", "message": message}
    slack = [notify(form="Slack"), notify(key="events")]
    broken = replace(
        training(notify=slack, failures={"maxRestarts": 0}),
        progress=a_progress(state="Failed", failure=failure),
    )
    text, event = notices(broken, 90)
    assert text.content_type == "application/json"
    assert list(text.body) == ["text"]
    said = text.body["text"]
    assert said.startswith("TrainingRun team-a/digits: Failed (RestartsExhausted): ")
    assert "&lt;!channel&gt; &amp; &lt;https://evil.example|free GPUs&gt;" in said
    assert said.endswith("[attempt 1, step 10]")
    for body in (text.body, event.body):
        sent = json.dumps(body, ensure_ascii=False).encode()
        assert len(sent) < 3000
        assert b"\x1b" not in sent
        assert b"\\u001b" not in sent


def test_what_is_remembered_of_a_thousand_losses_is_small():
    receivers = [notify(key=f"url-{number}") for number in range(8)]
    many = training(notify=receivers, failures={"maxHangs": -1})
    for batch in range(20):
        document = hangs(*range(50 * batch + 1, 50 * batch + 51))
        many = then(replace(many, progress=document), 60 + batch)
    assert many.run.status.disruptions.hangs == 1000
    assert len(many.run.status.disruptions.history) == 50
    assert len(json.dumps(many.run.status.seen["notified"])) < 20_000


def test_a_run_that_names_no_receiver_remembers_nothing():
    found = planned(training(notify=[]), 60)
    assert found.notices is None
    assert "notified" not in found.status.seen
    named = training()
    assert "notified" not in planned(wanting(named, notify=[]), 60).status.seen
