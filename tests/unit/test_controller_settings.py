"""Settings come from the environment; a wrong one is one clear sentence."""

import json

import kopf
import pytest

from trainingrun.controller import handlers
from trainingrun.controller.settings import (
    OperatorSettings,
    Settings,
    SettingsError,
    from_environment,
    variables,
)
from trainingrun.reconciling.model import NodePrice


@pytest.fixture
def read(monkeypatch):
    """What is read where the environment has these settings and no others."""

    def given(**settings: str) -> Settings:
        for name, value in settings.items():
            monkeypatch.setenv(f"TRAININGRUN_OPERATOR_{name}", value)
        return from_environment()

    return given


def test_without_variables_every_default_holds(read):
    assert read() == Settings()


def test_variables_reach_the_class_that_their_field_is_in(read):
    settings = read(
        NAMESPACES="team-a, team-b", WORKERS="3", PLATFORM="gke", LEASE_STALE_S="20", IMAGE=""
    )
    assert settings.operator.namespaces == ("team-a", "team-b")
    assert settings.operator.workers == 3
    assert settings.render.platform == "gke"
    assert settings.render.image == Settings().render.image
    assert settings.reconcile.lease_stale_s == 20.0


def test_who_may_scrape_the_runs_is_read_from_json(read):
    peer = '{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}'
    assert read(METRICS_FROM=f"[{peer}]").render.metrics_from == (json.loads(peer),)
    assert read(METRICS_FROM="[]").render.metrics_from == ()
    for value in ("prometheus", "{}", "[{}]", '["prometheus"]'):
        with pytest.raises(SettingsError, match="TRAININGRUN_OPERATOR_METRICS_FROM is "):
            read(METRICS_FROM=value)


def test_the_collector_of_the_history_server_is_read_from_json(read):
    collector = {"image": "quay.io/kuberay/collector:v1.7.0", "env": [{"name": "S3_REGION"}]}
    assert read(HISTORY_COLLECTOR=json.dumps(collector)).render.history_collector == collector
    assert not read(HISTORY_COLLECTOR="{}").render.history_collector
    for value in ("quay.io/kuberay/collector", "[]", "1"):
        with pytest.raises(SettingsError, match="TRAININGRUN_OPERATOR_HISTORY_COLLECTOR is "):
            read(HISTORY_COLLECTOR=value)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"resources": {"limits": {"cpu": "one"}}}, 'resources.limits.cpu is "one"; write a quant'),
        ({"env": [{"name": "A", "value": 1}]}, "env[0].value is wrong; write a text, in quotes"),
        ({"ports": [{"containerPort": 2**31}]}, "ports[0].containerPort is 2147483648; write"),
        ({"imagePullPolicy": "always"}, 'imagePullPolicy is "always"; write Always'),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_collector_that_would_stop_kuberay_is_refused_at_the_start(read, options, says):
    with pytest.raises(SettingsError) as raised:
        read(HISTORY_COLLECTOR=json.dumps({"image": "a", **options}))
    assert says in str(raised.value)


def test_the_user_of_training_pods_is_read_from_json_and_checked(read):
    context = {"runAsNonRoot": True}
    found = read(POD_SECURITY_CONTEXT=json.dumps(context)).render.pod_security_context
    assert found == context
    assert read(POD_SECURITY_CONTEXT="").render.pod_security_context is None
    for value, says in (
        ({"runAsUser": "1000"}, 'runAsUser is "1000"'),
        ({"fsGroup": 2**63}, "is 9"),
    ):
        with pytest.raises(SettingsError, match=says):
            read(POD_SECURITY_CONTEXT=json.dumps(value))


def test_prices_are_read_from_json(read):
    row = {"labels": {"node.kubernetes.io/instance-type": "p5.48xlarge"}, "perHour": 98.32}
    (price,) = read(PRICES=json.dumps([row])).reconcile.prices
    assert price == NodePrice(labels=row["labels"], per_hour=98.32)
    wrong = ({**row, "labels": {}}, {**row, "perHour": -1}, {**row, "perMonth": 1}, "p5")
    for value in wrong:
        with pytest.raises(SettingsError, match="TRAININGRUN_OPERATOR_PRICES is "):
            read(PRICES=json.dumps([value]))


def test_hosts_of_notifications_are_read_and_checked(read):
    hosts = "hooks.slack.com, *.example.com:8443,http://127.0.0.1:8080"
    found = read(NOTIFICATION_HOSTS=hosts).reconcile.notification_hosts
    assert found == ("hooks.slack.com", "*.example.com:8443", "http://127.0.0.1:8080")
    for wrong in ("*", "*.", "https://a.example", "a.example/x", "a@b", "A.example", "a:0", "a..b"):
        with pytest.raises(SettingsError, match="has to be a host name such as"):
            read(NOTIFICATION_HOSTS=f"a.example,{wrong}")


def test_an_empty_value_means_the_default_whatever_its_kind(read):
    assert read(NAMESPACES="", WORKERS="", POLL_S="", LOG_LEVEL="") == Settings()


@pytest.mark.parametrize(
    ("name", "value", "need"),
    [
        pytest.param("WORKERS", "many", "it should be a valid integer", id="no whole number"),
        pytest.param("WORKERS", "0", "it should be greater than 0", id="zero workers"),
        pytest.param("POLL_S", "soon", "it should be a valid number", id="no number"),
        pytest.param("POLL_S", "-1", "it should be greater than 0", id="negative duration"),
        pytest.param("POLL_S", "inf", "it should be a finite number", id="infinite duration"),
        pytest.param(
            "KUBERAY_CHECK_S", "601", "it should be less than or equal to 600", id="too seldom"
        ),
        pytest.param("POLL_S", "nan", "it should be a finite number", id="not a number"),
        pytest.param(
            "LOG_LEVEL", "LOUD", "it should be 'DEBUG', 'INFO', 'WARNING' or 'ERROR'", id="level"
        ),
        pytest.param("RAY_AUTH", "on", "it should be 'token' or 'disabled'", id="authentication"),
        pytest.param(
            "PLATFORM",
            "ibm",
            "it should be 'generic', 'gke', 'eks', 'karpenter' or 'aks'",
            id="platform",
        ),
        pytest.param(
            "IMAGE_PULL_POLICY",
            "Sometimes",
            "it should be 'Always', 'IfNotPresent' or 'Never'",
            id="pull policy",
        ),
    ],
)
def test_a_wrong_value_is_named_with_what_it_needs(read, name, value, need):
    with pytest.raises(SettingsError) as raised:
        read(**{name: value})
    assert str(raised.value) == f"TRAININGRUN_OPERATOR_{name} is {value!r}; {need}"


def test_an_unknown_variable_is_refused_with_those_that_are_known(read):
    with pytest.raises(SettingsError, match="WORKRES is not a setting; known are ") as raised:
        read(WORKRES="3")
    assert set(str(raised.value).partition("known are ")[2].split(", ")) == set(variables())


def test_a_value_that_the_operator_finds_itself_is_no_setting(read):
    with pytest.raises(SettingsError, match="TOKEN_KEY is not a setting"):
        read(TOKEN_KEY="0a1b2c3d")


@pytest.mark.parametrize(("namespaces", "seconds"), [(0, 8), (40, 8), (500, 81)])
def test_a_watch_is_opened_anew_within_seconds_unless_there_are_very_many(
    namespaces: int, seconds: int
) -> None:
    kopfs = kopf.OperatorSettings()
    handlers.configure(kopfs, OperatorSettings(namespaces=tuple(map(str, range(namespaces)))))
    assert kopfs.watching.server_timeout == seconds
    assert " " in kopfs.persistence.finalizer, "an object could have it, and kopf would take it off"
    assert kopfs.watching.inactivity_timeout == seconds + 2
