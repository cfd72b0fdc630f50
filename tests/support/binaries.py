"""Finds etcd, kube-apiserver and KubeRay's CRDs, wherever this machine can get them from."""

import fcntl
import json
import os
import shutil
import subprocess
from pathlib import Path

KUBERNETES_SERIES = "1.34.x"
KUBERAY_MODULE = "github.com/ray-project/kuberay/ray-operator@v1.6.0"
KUBERAY_PLURALS = ("rayclusters", "rayjobs")
CACHE = Path.home() / ".cache" / "trainingrun-envtest"
BUILD_SCRIPT = Path(__file__).with_name("build_apiserver.sh")
NAMES = ("etcd", "kube-apiserver")


class Unavailable(Exception):
    """Something that cannot be had on this machine; the text says what was tried."""


def apiserver_binaries() -> dict[str, Path]:
    """Paths of etcd and kube-apiserver: KUBEBUILDER_ASSETS, PATH, setup-envtest, the cache, Go."""
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
        done = _run(["go", "mod", "download", "-json", KUBERAY_MODULE], cwd="/")
        folder = str(Path(json.loads(done)["Dir"]) / "config" / "crd" / "bases")
    files = [Path(folder) / f"ray.io_{plural}.yaml" for plural in KUBERAY_PLURALS]
    if missing := [file for file in files if not file.is_file()]:
        raise Unavailable(f"no KubeRay CRDs: there is no {missing[0]}")
    return files


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


def _from_setup_envtest() -> dict[str, Path] | None:
    if not shutil.which("setup-envtest"):
        return None
    return _in_folder(_run(["setup-envtest", "use", KUBERNETES_SERIES, "-p", "path"]).strip())


def _cached() -> dict[str, Path] | None:
    return _in_folder(CACHE)


def _compiled() -> dict[str, Path] | None:
    if not shutil.which("go"):
        return None
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes of pytest one compiles
        if not _cached():
            _run([str(BUILD_SCRIPT), str(CACHE)])
    return _cached()


def _run(command: list[str], cwd: str | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout
