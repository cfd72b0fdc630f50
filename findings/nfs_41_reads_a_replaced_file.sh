#!/usr/bin/env bash
# Linux 6.1's NFS client (Debian 12): from NFS 4.1 on, a name whose file was replaced on the server reads
# as the former file while this client has that one open; not where the folder is opened first.
#
# nfs(5) says that open() asks the server whether what is cached is out of date. From 4.1 on a cached
# name is opened by the handle of its file and not by the name, and an open file stays readable by its
# handle. NFS 3, and 4.0, which opens by the name, read the new file at once. Whoever replaces files by
# rename and reads them on another machine, where another thread has the former one open, reads old
# content without an error.
#
# Output as seen:
#   NFS 3: new; after opening the folder: new
#   NFS 4.0: new; after opening the folder: new
#   NFS 4.2: old; after opening the folder: new
#
# Fails if that changes. Needs Debian 12 on amd64 with its package registry, ip and Python 3; no root.
# The kernel is Debian's User Mode Linux, which runs as a process, with its own NFS server and client.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/debs" "$folder/told"
(cd "$folder/debs" && apt-get download --quiet=2 user-mode-linux=6.1um4+b13 \
  nfs-kernel-server=1:2.6.2-4+deb12u1 nfs-common=1:2.6.2-4+deb12u1 rpcbind=1.2.6-6+b1 \
  libtirpc3 libtirpc-common libnfsidmap1 libevent-core-2.1-7 libwrap0 2> /dev/null)
for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$folder/root"; done

cat > "$folder/init.py" <<'PYTHON'
import ctypes
import os
import pathlib
import subprocess
import sys
import time

folder = pathlib.Path(sys.argv[1])
root = folder / "root"
libc = ctypes.CDLL(None, use_errno=True)


def mount(kind, place, options=""):
    pathlib.Path(place).mkdir(exist_ok=True)
    if libc.mount(kind.encode(), f"{place}".encode(), kind.encode(), 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"{kind} on {place}")


def run(*command):
    folders = ":".join(f"{root / each}" for each in ("sbin", "usr/sbin"))
    libraries = ":".join(f"{root / each}/x86_64-linux-gnu" for each in ("usr/lib", "lib"))
    environment = {"PATH": folders, "LD_LIBRARY_PATH": libraries}
    subprocess.run(["/usr/bin/env", *command], env=environment, check=True, stderr=2)


def read(path):
    try:
        return path.read_text()
    except OSError as error:
        return os.strerror(error.errno)


def main():
    for kind, place in [("proc", "/proc"), ("tmpfs", "/run"), ("tmpfs", "/var/lib")]:
        mount(kind, place)
    mount("hostfs", "/run/told", f"{folder}/told")
    modules = root / "usr/lib/uml/modules" / os.uname().release
    lines = (line.split(":") for line in (modules / "modules.dep").read_text().splitlines())
    needs = {name: needed.split() for name, needed in lines}
    wanted = [f"kernel/fs/{each}.ko" for each in
              ("nfs/nfsv3", "nfs/nfsv4", "nfsd/nfsd", "overlayfs/overlay")]
    for name in dict.fromkeys(n for each in wanted for n in (*reversed(needs[each]), each)):
        with (modules / name).open("rb") as file:
            assert libc.syscall(313, file.fileno(), b"", 0) == 0  # finit_module on x86-64
    etc, exported = pathlib.Path("/run/etc"), pathlib.Path("/run/exported")
    etc.mkdir()
    users = pathlib.Path("/etc/passwd").read_text()
    (etc / "passwd").write_text(f"{users}\n_rpc:x:65533:65534::/run/rpcbind:/bin/false\n")
    (etc / "exports").write_text(f"{exported} *(rw,no_root_squash,insecure,fsid=0)\n")
    mount("overlay", "/etc", f"lowerdir={etc}:{root}/etc:/etc")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for name in ("v4recovery", "rpc_pipefs", "sm", "sm.bak"):
        pathlib.Path("/var/lib/nfs", name).mkdir(parents=True)
    for name in ("etab", "rmtab", "state"):
        pathlib.Path("/var/lib/nfs", name).touch()
    mount("tmpfs", exported)
    mount("nfsd", "/proc/fs/nfsd")
    run("rpcbind")
    for _ in range(100):
        if pathlib.Path("/run/rpcbind.sock").exists():
            break
        time.sleep(0.1)
    run("exportfs", "-a")
    run("rpc.nfsd", "4")
    run("rpc.mountd")
    with open("/run/told/output", "w") as told:
        for version in ("3", "4.0", "4.2"):
            place = pathlib.Path(f"/run/nfs-{version}")
            place.mkdir()
            what = (exported, "vers=3,nolock") if version == "3" else ("/", f"vers={version}")
            run("mount.nfs", f"127.0.0.1:{what[0]}", f"{place}", "-o", what[1])
            there, here = exported / version, place / version
            there.mkdir()
            (there / "file").write_text("old")
            assert read(here / "file") == "old"
            with (here / "file").open() as former:
                former.read()
                (there / "staged").write_text("new")
                (there / "staged").rename(there / "file")
                first = read(here / "file")
                os.close(os.open(here, os.O_DIRECTORY))
                second = read(here / "file")
            print(f"NFS {version}: {first}; after opening the folder: {second}", file=told)


try:
    main()
except BaseException:
    import traceback

    traceback.print_exc()
finally:
    libc.reboot(0x4321FEDC)  # power off
PYTHON

timeout 300 "$folder/root/usr/bin/linux.uml" mem=512M rootfstype=hostfs rootflags=/ ro quiet \
  con=null con0=fd:0,fd:1 init="$(command -v python3)" -- "$folder/init.py" "$folder" \
  < /dev/null > "$folder/console" 2>&1 || true
test -s "$folder/told/output" || { cat "$folder/console"; exit 1; }
cat "$folder/told/output"
diff "$folder/told/output" - <<'EXPECTED'
NFS 3: new; after opening the folder: new
NFS 4.0: new; after opening the folder: new
NFS 4.2: old; after opening the folder: new
EXPECTED
