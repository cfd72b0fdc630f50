from pathlib import Path

import pytest

from support import binaries


@pytest.fixture
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any of the tools; its PATH is the returned folder."""
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    monkeypatch.delenv("KUBERAY_CRDS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(binaries, "CACHE", tmp_path / "cache")
    return tmp_path


def tool(folder: Path, name: str, script: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return folder / name


def test_a_machine_with_nothing_says_what_was_tried(bare_machine: Path):
    with pytest.raises(binaries.Unavailable, match="neither setup-envtest nor Go"):
        binaries.apiserver_binaries()
    with pytest.raises(binaries.Unavailable, match="KUBERAY_CRDS is not set, and there is no Go"):
        binaries.kuberay_crds()


def test_the_named_folder_goes_before_path(bare_machine: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in (bare_machine, bare_machine / "assets"):
        for name in binaries.NAMES:
            tool(folder, name)
    assert binaries.apiserver_binaries()["etcd"] == bare_machine / "etcd"
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(bare_machine / "assets"))
    assert binaries.apiserver_binaries()["etcd"] == bare_machine / "assets" / "etcd"


def test_one_binary_alone_is_not_enough(bare_machine: Path):
    tool(bare_machine, "etcd")
    with pytest.raises(binaries.Unavailable):
        binaries.apiserver_binaries()


def test_setup_envtest_is_asked_for_a_folder(bare_machine: Path):
    for name in binaries.NAMES:
        tool(bare_machine / "bin", name)
    tool(bare_machine, "setup-envtest", f"echo {bare_machine / 'bin'}")
    assert binaries.apiserver_binaries()["etcd"] == bare_machine / "bin" / "etcd"


def test_what_was_compiled_before_is_used_again(bare_machine: Path):
    for name in binaries.NAMES:
        tool(bare_machine / "cache", name)
    assert binaries.apiserver_binaries()["etcd"] == bare_machine / "cache" / "etcd"


def test_another_version_is_asked_for_by_its_number(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBERNETES_VERSION", "1.30.14")
    for name in binaries.NAMES:
        tool(bare_machine, name)
        tool(bare_machine / "1.30.14", name)
    tool(bare_machine, "setup-envtest", f'echo "{bare_machine}/$2"')
    assert binaries.apiserver_binaries()["etcd"] == bare_machine / "1.30.14" / "etcd"


def test_another_version_is_compiled_into_a_folder_of_its_own_beside_any_etcd(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("KUBERNETES_VERSION", "1.30.14")
    monkeypatch.setattr(binaries, "BUILD_SCRIPT", tool(bare_machine, "build", "touch $1/asked-$2"))
    for name in binaries.NAMES:
        tool(bare_machine, name)
    with pytest.raises(binaries.Unavailable, match=r"no kube-apiserver 1\.30\.14: .*neither"):
        binaries.apiserver_binaries()
    tool(bare_machine, "go")
    monkeypatch.setenv("PATH", f"{bare_machine}:/usr/bin:/bin")
    with pytest.raises(binaries.Unavailable):
        binaries.apiserver_binaries()
    folder = bare_machine / "cache" / "1.30.14"
    assert (folder / "asked-1.30.14").exists()
    assert (folder / "etcd").readlink() == bare_machine / "etcd"
    tool(folder, "kube-apiserver")
    assert binaries.apiserver_binaries()["kube-apiserver"] == folder / "kube-apiserver"


def test_a_tool_that_fails_is_named_with_its_output(bare_machine: Path):
    tool(bare_machine, "setup-envtest", "echo no route to host >&2; exit 1")
    with pytest.raises(binaries.Unavailable, match=r"setup-envtest use .*: no route to host"):
        binaries.apiserver_binaries()


def test_kueue_is_compiled_into_a_folder_of_its_own(
    bare_machine: Path, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(binaries.Unavailable, match="there is no Go"):
        binaries.kueue_controller()
    tool(bare_machine, "go")
    monkeypatch.setenv("PATH", f"{bare_machine}:/usr/bin:/bin")
    monkeypatch.setenv("KUEUE_VERSION", "0.16.1")
    monkeypatch.setattr(binaries, "KUEUE_SCRIPT", tool(bare_machine, "build", "touch $1/asked-$2"))
    found = binaries.kueue_controller()
    assert found == bare_machine / "cache" / "kueue-0.16.1" / "kueue"
    assert (found.parent / "asked-0.16.1").exists()


@pytest.mark.parametrize(
    ("ci", "wanted", "outcome"),
    [
        ("true", False, pytest.fail.Exception),
        ("", True, pytest.fail.Exception),
        ("", False, pytest.skip.Exception),
    ],
)
def test_what_cannot_be_had_fails_in_ci_and_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, ci: str, wanted: bool, outcome: type[BaseException]
):
    monkeypatch.setenv("CI", ci)
    unavailable = binaries.skipping_unavailable(wanted=wanted)
    with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as raised, unavailable:
        raise binaries.Unavailable("no Go")
    assert (raised.type, str(raised.value)) == (outcome, "no Go")
