"""Finds etcd, kube-apiserver, KubeRay and Kueue, wherever this machine can get them from.

$KUBERNETES_VERSION, $KUBERAY_VERSION and $KUEUE_VERSION name other versions than the usual ones,
such as 1.30.14.
"""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KUBERNETES_SERIES = "1.34.x"
KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator"
KUBERAY_VERSION = "1.6.0"
KUBERAY_PLURALS = ("rayclusters", "rayjobs")
KUEUE_MODULE = "sigs.k8s.io/kueue"
KUEUE_VERSION = "0.17.0"
CACHE = Path.home() / ".cache" / "trainingrun-envtest"
BUILD_SCRIPT = Path(__file__).with_name("build_apiserver.sh")
KUEUE_SCRIPT = Path(__file__).with_name("build_kueue.sh")
NAMES = ("etcd", "kube-apiserver")


class Unavailable(Exception):
    """Something that cannot be had on this machine; the text says what was tried."""


@contextlib.contextmanager
def skipping_unavailable(*, wanted: bool = False) -> Iterator[None]:
    """Skip where something is `Unavailable`; in CI, or where it is `wanted`, that is a failure."""
    try:
        yield
    except Unavailable as reason:
        if wanted or os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


def apiserver_binaries() -> dict[str, Path]:
    """Paths of etcd and kube-apiserver: KUBEBUILDER_ASSETS, PATH, setup-envtest, the cache, Go."""
    if version := os.environ.get("KUBERNETES_VERSION"):
        return _of_version(version)
    for find in (_assets, _on_path, _from_setup_envtest, _cached, _compiled):
        if found := find():
            return found
    raise Unavailable(
        "no etcd and kube-apiserver: KUBEBUILDER_ASSETS is not set to a folder with both, they are "
        "not on PATH, and there is neither setup-envtest nor Go to get them with"
    )


def kuberay_crds() -> list[Path]:
    """The files of the KubeRay CRDs used here: from $KUBERAY_CRDS, else from its Go module."""
    folder = os.environ.get("KUBERAY_CRDS")
    if not folder:
        if not shutil.which("go"):
            raise Unavailable("no KubeRay CRDs: KUBERAY_CRDS is not set, and there is no Go")
        version = os.environ.get("KUBERAY_VERSION", KUBERAY_VERSION)
        folder = str(_module(KUBERAY_MODULE, version) / "config" / "crd" / "bases")
    files = [Path(folder) / f"ray.io_{plural}.yaml" for plural in KUBERAY_PLURALS]
    if missing := [file for file in files if not file.is_file()]:
        raise Unavailable(f"no KubeRay CRDs: there is no {missing[0]}")
    return files


def kuberay_operator() -> Path:
    """KubeRay's own operator: $KUBERAY_OPERATOR, else in KUBEBUILDER_ASSETS or on PATH."""
    folders = f"{os.environ.get('KUBEBUILDER_ASSETS', '')}:{os.environ['PATH']}"
    found = os.environ.get("KUBERAY_OPERATOR") or shutil.which("kuberay-operator", path=folders)
    if not found or not os.access(found, os.X_OK):
        raise Unavailable(
            f"no operator of KubeRay: KUBERAY_OPERATOR is {found or 'not set'}, and "
            "kuberay-operator is neither in KUBEBUILDER_ASSETS nor on PATH"
        )
    return Path(found)


def kueue_crds() -> list[Path]:
    """The files of Kueue's CRDs, from its Go module."""
    if not shutil.which("go"):
        raise Unavailable("no CRDs of Kueue: there is no Go")
    module = _module(KUEUE_MODULE, os.environ.get("KUEUE_VERSION", KUEUE_VERSION))
    return sorted((module / "config" / "components" / "crd" / "bases").glob("*.yaml"))


def kueue_controller() -> Path:
    """Kueue's own controller, compiled from its Go module; it takes some minutes, once."""
    version = os.environ.get("KUEUE_VERSION", KUEUE_VERSION)
    folder = CACHE / f"kueue-{version}"
    if not shutil.which("go"):
        raise Unavailable(f"no controller of Kueue {version}: there is no Go to compile it with")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes of pytest one compiles
        _run([str(KUEUE_SCRIPT), str(folder), version])
    return folder / "kueue"


def _in_folder(folder: str | Path | None) -> dict[str, Path] | None:
    if not folder:
        return None
    found = {name: Path(folder) / name for name in NAMES}
    return found if all(os.access(path, os.X_OK) for path in found.values()) else None


def _assets() -> dict[str, Path] | None:
    return _in_folder(os.environ.get("KUBEBUILDER_ASSETS"))


def _on_path() -> dict[str, Path] | None:
    found = {name: Path(path) for name in NAMES if (path := shutil.which(name))}
    return found if len(found) == len(NAMES) else None


def _from_setup_envtest(version: str = KUBERNETES_SERIES) -> dict[str, Path] | None:
    if not shutil.which("setup-envtest"):
        return None
    return _in_folder(_run(["setup-envtest", "use", version, "-p", "path"]).strip())


def _cached() -> dict[str, Path] | None:
    return _in_folder(CACHE)


def _compiled(*version: str) -> dict[str, Path] | None:
    """The usual version in the cache, another one in a folder of its own, with any etcd."""
    folder = CACHE.joinpath(*version)
    if not _in_folder(folder) and not shutil.which("go"):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes of pytest one compiles
        usual = version and (_assets() or _on_path() or _cached())
        if usual and not (folder / "etcd").exists():
            (folder / "etcd").symlink_to(usual["etcd"])
        if not _in_folder(folder):
            _run([str(BUILD_SCRIPT), str(folder), *version])
    return _in_folder(folder)


def _of_version(version: str) -> dict[str, Path]:
    if found := _from_setup_envtest(version) or _compiled(version):
        return found
    raise Unavailable(
        f"no kube-apiserver {version}: there is neither setup-envtest nor Go to get it with, and "
        f"none in {CACHE / version}"
    )


def _module(name: str, version: str) -> Path:
    """The folder of a Go module."""
    done = _run(["go", "mod", "download", "-json", f"{name}@v{version}"], cwd="/")
    return Path(json.loads(done)["Dir"])


def _run(command: list[str], cwd: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
