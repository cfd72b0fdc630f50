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


def test_a_tool_that_fails_is_named_with_its_output(bare_machine: Path):
    tool(bare_machine, "setup-envtest", "echo no route to host >&2; exit 1")
    with pytest.raises(binaries.Unavailable, match=r"setup-envtest use .*: no route to host"):
        binaries.apiserver_binaries()
