"""Finds helm, Prometheus and an NFS server wherever this machine can get them from; `python -m
support.tools helm` prints where.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from support.binaries import CACHE, Unavailable

HELM_PACKAGE = "helm.sh/helm/v4/cmd/helm"
HELM_VERSION = "v4.3.1"


def helm() -> Path:
    """The path of helm: $HELM, PATH, our cache, else compiled from its Go module into that cache.

    Raises:
        Unavailable: none of that works here; the text says what was tried.
    """
    if named := os.environ.get("HELM"):
        return Path(named)
    if on_path := shutil.which("helm"):
        return Path(on_path)
    cached = CACHE / "helm"
    if not cached.is_file():
        if not shutil.which("go"):
            raise Unavailable("no helm: it is neither $HELM nor on PATH, and there is no Go")
        _compile(cached)
    return cached


def prometheus(name: str = "prometheus") -> Path:
    """The path of `prometheus` or `promtool`: PATH, our cache, else out of Debian's package, which
    is unpacked into that cache and not installed: no service begins.

    Raises:
        Unavailable: none of that works here; the text says what was tried.
    """
    if on_path := shutil.which(name):
        return Path(on_path)
    return _unpacked("prometheus", "prometheus") / "usr" / "bin" / name


def nfs_server() -> Path:
    """A folder with Debian's packages of User Mode Linux, which is a Linux kernel that runs as a
    process, of the tools of an NFS server and a client, and of their libraries.

    Raises:
        Unavailable: this is not Debian, or apt-get failed.
    """
    return _unpacked("nfs", *NFS_PACKAGES)


NFS_PACKAGES = (
    *("user-mode-linux", "nfs-kernel-server", "nfs-common", "rpcbind", "iproute2"),
    *("libbpf1", "libbsd0", "libcap2", "libelf1", "libevent-core-2.1-7", "libgssapi-krb5-2"),
    *("libk5crypto3", "libkeyutils1", "libkrb5-3", "libkrb5support0", "libmd0", "libmnl0"),
    *("libnfsidmap1", "libtirpc-common", "libtirpc3", "libwrap0", "libxtables12"),
)


def _unpacked(name: str, *packages: str) -> Path:
    """A folder of our cache with the content of packages of Debian; nothing is installed."""
    folder = CACHE / name
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / f".{name}-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # of several processes of pytest one downloads
            if not folder.is_dir():
                _unpack(name, packages, folder)
    return folder


def _unpack(name: str, packages: Sequence[str], target: Path) -> None:
    """Unpack packages into a folder, which is there only once it is complete."""
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Unavailable(f"no {name}: it is not on PATH, and this is not Debian")
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        download = ["apt-get", "download", "--quiet", *packages]
        done = subprocess.run(download, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:  # on a new machine the lists of packages are missing
            for command in (["apt-get", "update", "--quiet"], download):
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False
                )
        if done.returncode:
            raise Unavailable(f"no {name}: apt-get failed: {done.stderr[-2000:]}")
        for archive in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(archive), f"{folder}/unpacked"], check=True)
        Path(folder, "unpacked").rename(target)


def _compile(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder), Path(folder) / "helm"
        module = HELM_PACKAGE.removesuffix("/cmd/helm")
        # Without a go line the whole module graph is loaded, for minutes, and the build then fails.
        (source / "go.mod").write_text(
            f"module tools\n\ngo 1.24.0\n\nrequire {module} {HELM_VERSION}\n"
        )
        (source / "tools.go").write_text(
            f'//go:build tools\n\npackage tools\n\nimport _ "{HELM_PACKAGE}"\n'
        )
        environment = {**os.environ, "GOFLAGS": "-mod=mod", "CGO_ENABLED": "0"}
        # tidy -e: test dependencies of dependencies may be out of reach, and nothing needs them.
        for command in (
            ["go", "mod", "tidy", "-e"],
            ["go", "build", "-trimpath", "-o", str(built), HELM_PACKAGE],
        ):
            done = subprocess.run(
                command, cwd=source, env=environment, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise Unavailable(f"no helm: {' '.join(command)} failed: {done.stderr[-2000:]}")
        # Renamed only when complete: another test run may use it at the same time.
        staged = target.with_name(f".helm-{os.getpid()}")
        shutil.copy2(built, staged)
        staged.replace(target)


if __name__ == "__main__":
    try:
        print({"helm": helm, "prometheus": prometheus}[sys.argv[1]]())
    except Unavailable as reason:
        sys.exit(str(reason))
