"""What the API server refuses an operator stands in the status of the run."""

from support.operators import a_run, eventually, running


async def test_what_the_api_server_refuses_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    """A LimitRange-like refusal, made by a template that the pod's schema does not take."""
    broken = {"spec": {"containers": [{"name": "ray-worker", "noSuchField": True}]}}
    async with running(await new_operator()):
        apiserver.create(a_run(namespace, workers={"count": 1, "podTemplate": broken}))
        await eventually(
            lambda: [
                c
                for c in status().get("conditions", [])
                if c["type"] == "Accepted"
                and c["status"] == "False"
                and "noSuchField" in c["message"]
            ]
        )
    assert kuberay.jobs() == []


QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "no-more-secrets"},
    "spec": {"hard": {"count/secrets": "0"}},
    "status": {"hard": {"count/secrets": "0"}, "used": {"count/secrets": "0"}},
}


def a_webhook(namespace: str) -> dict:
    """One that is down, for NetworkPolicies of this namespace."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": f"down-{namespace}"},
        "webhooks": [
            {
                "name": "down.example.com",
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "failurePolicy": "Fail",
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "timeoutSeconds": 1,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
                "rules": [
                    {
                        "apiGroups": ["networking.k8s.io"],
                        "apiVersions": ["v1"],
                        "operations": ["*"],
                        "resources": ["networkpolicies"],
                    }
                ],
            }
        ],
    }


def condition_says(status, *words: str) -> bool:
    return any(
        all(word in f"{c['reason']} {c.get('message')}" for word in words)
        for c in status().get("conditions", [])
    )


async def test_a_quota_that_refuses_the_token_s_secret_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    quota = QUOTA | {"metadata": QUOTA["metadata"] | {"namespace": namespace}}
    apiserver.create(quota)
    apiserver.replace(quota, "status")  # no controller counts here
    async with running(await new_operator()):
        apiserver.create(a_run(namespace))
        await eventually(lambda: condition_says(status, "QuotaExceeded", "Secret"))
    assert kuberay.jobs() == []


async def test_a_webhook_that_is_down_for_the_network_policy_stands_in_the_status(
    apiserver, namespace, kuberay, new_operator, status
):
    webhook = a_webhook(namespace)
    apiserver.create(webhook)
    try:
        async with running(await new_operator()):
            apiserver.create(a_run(namespace))
            await eventually(
                lambda: condition_says(status, "NetworkPolicy", "failed calling webhook")
            )
        assert kuberay.jobs() == [], "no pod runs without it"
    finally:
        apiserver.request("DELETE", apiserver.path(webhook))
