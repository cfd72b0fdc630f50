"""Credentials are those of the pod's service account, else of kubeconfig; a token is read anew."""

import subprocess

import pytest
import yaml

from trainingrun.cluster.credentials import TOKEN_S, Credentials
from trainingrun.controller import login
from trainingrun.controller.login import NoCredentials, load_credentials


def certify(file, name):
    """Writes a certificate, as that of an API server's authority of that name."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"]
    subprocess.run(
        [*command, "-keyout", f"{file}.key", "-out", str(file)], check=True, capture_output=True
    )


@pytest.fixture
def authority(tmp_path):
    """A certificate of an authority."""
    file = tmp_path / "ca.crt"
    certify(file, "authority")
    return file


@pytest.fixture(autouse=True)
def nothing(tmp_path, monkeypatch):
    """A process outside of any pod, without kubeconfig."""
    monkeypatch.setattr(login, "SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    """Writes one for a user with these fields."""

    def write(**user: object) -> None:
        file = tmp_path / "kubeconfig"
        found = {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "one", "user": "someone"}}],
            "clusters": [{"name": "one", "cluster": {"server": "https://10.0.0.1:6443/"}}],
            "users": [{"name": "someone", "user": user}],
        }
        file.write_text(yaml.safe_dump(found))
        monkeypatch.setenv("KUBECONFIG", str(file))

    return write


@pytest.mark.parametrize(
    ("host", "server"),
    [("10.0.0.1", "https://10.0.0.1:443"), ("fd00::1", "https://[fd00::1]:443")],
)
def test_a_pod_uses_its_service_account_and_no_name_that_dns_has_to_know(
    host, server, authority, tmp_path, monkeypatch, kubeconfig
):
    kubeconfig(token="of kubeconfig")
    (tmp_path / "token").write_text("first\n")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found = load_credentials()
    assert found.server == server
    assert found.headers() == {"Authorization": "Bearer first"}
    (known,) = found.tls.get_ca_certs()
    assert known["subject"] == ((("commonName", "authority"),),), "no other authority is trusted"


def test_a_token_that_was_replaced_is_used_within_a_minute(tmp_path):
    now = [100.0]
    file = tmp_path / "token"
    file.write_text("first")
    found = Credentials("https://here", token_file=file, clock=lambda: now[0])
    assert found.headers() == {"Authorization": "Bearer first"}
    file.write_text("second")
    now[0] += TOKEN_S
    assert found.headers() == {"Authorization": "Bearer second"}
    file.unlink()
    now[0] += TOKEN_S
    assert found.headers() == {"Authorization": "Bearer second"}, "it is good for some minutes more"


def test_an_authority_that_was_replaced_is_trusted_within_a_minute(
    authority, tmp_path, monkeypatch
):
    (tmp_path / "token").write_text("first")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    found, now = load_credentials(), [100.0]
    found.clock = lambda: now[0]
    certify(authority, "its successor")
    found.headers()
    assert "its successor" in str(found.tls.get_ca_certs())
    authority.write_text("half of one")  # the kubelet is writing it
    now[0] += TOKEN_S
    assert found.headers() == {"Authorization": "Bearer first"}


def test_outside_of_a_pod_kubeconfig_counts(kubeconfig):
    kubeconfig(token="secret")
    found = load_credentials()
    assert found.server == "https://10.0.0.1:6443"
    assert found.headers() == {"Authorization": "Bearer secret"}


def test_without_any_the_error_says_what_to_do():
    with pytest.raises(NoCredentials, match="run in a pod with a service account, or set KUBEC"):
        load_credentials()


def test_a_credential_plugin_is_not_run_and_the_error_says_so(kubeconfig):
    kubeconfig(exec={"command": "aws"})
    with pytest.raises(NoCredentials, match=r"runs no credential plugin; put a token there"):
        load_credentials()


@pytest.mark.parametrize("text", ["[", "{}", "contexts: 1", "current-context: elsewhere", "7"])
def test_a_kubeconfig_that_cannot_be_read_is_one_sentence(text, tmp_path, monkeypatch):
    file = tmp_path / "kubeconfig"
    file.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(file))
    with pytest.raises(NoCredentials, match="KUBECONFIG") as raised:
        load_credentials()
    assert "\n" not in str(raised.value)
