"""What is handed on of objects and logs has no secret in it, and is still of use."""

import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainingrun.cli.masking import Masking

SECRET = "tr0ub4dor&3 horse"
NOTHING = Masking([])


def a_run(**training: Any) -> dict[str, Any]:
    return {"metadata": {"name": "digits", "namespace": "team-a"}, "spec": {"training": training}}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(a_run(env=[{"name": "ANY", "value": SECRET}]), id="env"),
        pytest.param(a_run(script={"args": ["--x", SECRET]}), id="args"),
        pytest.param(a_run(config={"wandb": {"apiKey": SECRET}}), id="config"),
        pytest.param(a_run(config={"db": {"pwd": SECRET}}), id="config-pwd"),
        pytest.param(a_run(config={"passwords": ["x", SECRET]}), id="list"),
        pytest.param(a_run(config={"hfTokens": {"reader": {"a": SECRET}}}), id="map"),
        pytest.param({"csi": {"volumeAttributes": {"user": SECRET}}}, id="csi"),
        pytest.param({"flexVolume": {"options": {"account": SECRET}}}, id="flex"),
        pytest.param(
            {"httpGet": {"httpHeaders": [{"name": "X-Who", "value": SECRET}]}}, id="header"
        ),
        pytest.param({"sweep": {"parameters": {"api_key": {"choice": [SECRET]}}}}, id="sweep"),
        pytest.param({"metadata": {"annotations": {"team/contact": SECRET}}}, id="annotation"),
        pytest.param({"spec": {"containers": [{"command": ["sh", "-c", SECRET]}]}}, id="command"),
        pytest.param({"spec": {"runtimeEnvYAML": f"env_vars: {{A: {SECRET}}}"}}, id="runtime-env"),
        pytest.param({"metadata": {"managedFields": [{"manager": SECRET}]}}, id="managed-fields"),
    ],
)
def test_no_object_has_a_secret(found: dict[str, Any]) -> None:
    assert SECRET not in str(Masking([found]).manifest(found))


def test_what_an_object_says_otherwise_is_kept() -> None:
    reference = {"secretKeyRef": {"name": "digits-token", "key": "token"}}
    run = a_run(
        env=[{"name": "A", "valueFrom": reference}, {"name": "LEVEL", "value": "12345678"}],
        config={"steps": 600, "tokenizer": "bert-base", "lr": 0.1},
        function="trainingrun_runtime.examples.digits:train",
    )
    run["metadata"]["annotations"] = {"trainingrun.dev/note": "kept"}
    kept = Masking([run]).manifest(run)
    run["spec"]["training"]["env"][1]["value"] = "***"
    assert kept == run


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        pytest.param(f"connecting with {SECRET} now", "connecting with *** now", id="itself"),
        pytest.param("/?p=tr0ub4dor%263%20horse&q=1", "/?p=***&q=1", id="url"),
        pytest.param("p: dHIwdWI0ZG9yJjMgaG9yc2U=", "p: ***=", id="base64"),
    ],
)
def test_a_value_that_is_secret_in_an_object_is_secret_in_each_text(text: str, masked: str) -> None:
    assert Masking([a_run(env=[{"name": "ANY", "value": SECRET}])]).text(text) == masked


def test_each_line_of_a_secret_is_secret() -> None:
    masking = Masking([a_run(env=[{"name": "KEY", "value": "first-line\nsecond-line\n"}])])
    assert masking.text("a first-line b\nsecond-line") == "a *** b\n***"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("password=hunter2horse", "hunter2horse"),
        ("DB_PASS=hunter2horse", "hunter2horse"),
        ("MYSQL_PWD: hunter2horse", "hunter2horse"),
        ("{'db_pass': 'hunter2horse'}", "hunter2horse"),
        ("AccountName=a;AccountKey=hunter2horse==;EndpointSuffix=x", "hunter2horse"),
        ("HFTOKEN=hunter2horse", "hunter2horse"),
        ("SLACK_WEBHOOK=https://hooks.slack.com/services/T0/B0/hunter2horse", "hunter2horse"),
        ("Cookie: session=hunter2horse", "hunter2horse"),
        ("redis://user:p@hunter2horse@host:1/0", "hunter2horse"),
        ("redis://:p/hunter2horse@host:1/0", "hunter2horse"),
        ('{"api_key": "hunter2horse"}', "hunter2horse"),
        ("--wandb-token hunter2horse --steps 600", "hunter2horse"),
        ("Authorization: Bearer hunter2horse", "hunter2horse"),
        ("curl -H 'authorization: Basic aHVudGVyMg=='", "aHVudGVyMg"),
        ("s3://AKIAIOSFODNN7EXAMPLE/", "AKIAIOSFODNN7EXAMPLE"),
        ("login hf_abcdefghijklmnopqrstuv", "hf_abcdefghijklmnopqrstuv"),
        ("cookie eyJhbGciOiJIUzI1.eyJzdWIiOiIx.SflKxwRJ", "SflKxwRJ"),
        ("postgres://me:hunter2horse@db/x", "hunter2horse"),
        ("https://b/x?X-Amz-Signature=0123abcdef&y=1", "0123abcdef"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIabc\nMIIdef\n-----END", "MIIdef"),
    ],
)
def test_a_secret_is_known_by_its_name_or_form(text: str, secret: str) -> None:
    assert secret in text
    masked = NOTHING.text(text)
    assert secret not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text",
    [
        'secrets "digits-1-x" not found',
        "token expired at 12:30:00",
        "tokens=123456 tokenizer=bert-base-uncased",
        "KeyError: 'classifier.weight', key: encoder.layer.0, forward_pass: 0.123s",
        "PWD=/workspace/train PASS: test_attention",
        "git+https://github.com/org/project@v1.2.3 at http://10.0.0.1:8265/api/jobs@1",
        "step 480/600, loss 0.0123, 99000 tokens/s",
        "s3://runs/digits-1a2b3c4d/checkpoints/480",
        '  File "/app/train.py", line 88, in main',
        "rank 3 on node gke-training-a3-highgpu-8g-spot-1a2b3c4d-x7k2 is slow",
    ],
)
def test_what_is_no_secret_is_kept(text: str) -> None:
    run = a_run(env=[{"name": "WANDB_NAME", "value": "digits"}, {"name": "N", "value": "123456"}])
    run["spec"]["training"]["script"] = {"args": ["train.py", "--main", "digits-1a2b"]}
    assert Masking([run]).text(text) == text


def test_a_long_line_is_cut_where_it_ends() -> None:
    assert NOTHING.text("a" * 5000 + "\r\nb") == "a" * 4096 + " (904 more characters)\r\nb"


@pytest.mark.parametrize(
    "piece", ["secret", "eyJ", "://", "--", "-----BEGIN PRIVATE KEY-----", "hf_", "token=", "\n"]
)
def test_hostile_text_takes_no_long_time(piece: str) -> None:
    began = time.process_time()
    NOTHING.text(piece * (256 * 1024 // len(piece)))
    assert time.process_time() - began < 5


@given(
    secret=st.text(st.characters(categories=["L", "P", "S"]), min_size=8, max_size=40),
    before=st.text(max_size=40),
    after=st.text(max_size=40),
)
def test_a_secret_is_in_no_text(secret: str, before: str, after: str) -> None:
    assume("*" not in secret and not set(secret) <= set(".,:/%eE+-"))
    run = a_run(env=[{"name": "PASSWORD", "value": secret}])
    masking = Masking([run])
    assert secret not in masking.text(f"{before}{secret}{after}")
    assert secret not in str(masking.manifest(run))
