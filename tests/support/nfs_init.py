"""The first process of a Linux of its own: an NFS server, and two nodes that mount what it exports.

`support.user_mode_linux` starts it. Each node has a network, a host name and a mount of its own, at
`/mnt/claims/runs`, so that nothing of one's caches is the other's. On node `a` a command runs;
`call` has a function run on node `b`, or where the server is.

    python -m support.nfs_init PACKAGES FOLDER

PACKAGES is `tools.nfs_server()`. FOLDER is one of the machine: its `version` of NFS and `command`
are read, `output` and then `exit-code` are written.
"""

import ctypes
import json
import os
import platform
import subprocess
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any, TypeVar

from support.processes import wait_for

T = TypeVar("T")

MOUNT = "/mnt/claims/runs"
EXPORTED = "/run/exported"
SERVER = "server"
_WRITABLE = ("/run", "/mnt", "/var/lib", "/dev/shm")
"""Folders in memory; all else is the machine's, and read-only."""
_MODULES = ("drivers/net/veth", "fs/fuse/fuse", "fs/nfs/nfsv3", "fs/nfs/nfsv4", "fs/nfsd/nfsd",
            "fs/overlayfs/overlay")  # fmt: skip
_FINIT_MODULE = 313
"""The number of the system call on x86-64."""
_NEW_MOUNTS, _NEW_HOST_NAME, _NEW_NETWORK = 0x00020000, 0x04000000, 0x40000000
"""CLONE_NEWNS, CLONE_NEWUTS and CLONE_NEWNET of linux/sched.h."""
_PRIVATE = 0x44000
"""MS_REC and MS_PRIVATE of linux/mount.h."""
_POWER_OFF = 0x4321FEDC
"""LINUX_REBOOT_CMD_POWER_OFF of linux/reboot.h."""
_libc = ctypes.CDLL(None, use_errno=True)


def call(node: str, function: Callable[..., T], *arguments: Any) -> T:
    """What a function returns on a node, or where the server is; its error is raised here."""
    with Client(_socket(node)) as there:
        there.send((function, arguments))
        fine, answer = there.recv()
    if not fine:
        raise answer
    return answer  # type: ignore[no-any-return]


def run(*command: str) -> None:
    """Run a program of the packages, whose libraries are theirs, too."""
    packages = Path(sys.argv[1])
    folders = [packages / each for each in ("sbin", "usr/sbin", "bin", "usr/bin")]
    libraries = [packages / each / "x86_64-linux-gnu" for each in ("usr/lib", "lib")]
    environment = {
        "PATH": ":".join(map(str, folders)),
        "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
    }
    subprocess.run(["/usr/bin/env", *command], env=environment, check=True)


def main(packages: str, folder: str) -> None:
    """Make this Linux what the module's text says, and run the command."""
    _mount("proc", "/proc")
    _mount("sysfs", "/sys")
    for each in _WRITABLE:
        _mount("tmpfs", each)
    _mount("hostfs", "/run/shared", folder)
    shared = Path("/run/shared")
    with (shared / "output").open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    _load_modules(Path(packages, "usr/lib/uml/modules", platform.release()))
    _add_to_etc(packages)
    run("ip", "link", "set", "dev", "lo", "up")
    _start_server()
    for number, node in enumerate("ab", 1):
        _start_node(node, number, (shared / "version").read_text())
    _start(SERVER, lambda: None)
    code = call("a", _command, json.loads((shared / "command").read_text()))
    (shared / "exit-code").write_text(f"{code}")


def _load_modules(folder: Path) -> None:
    """Load what this kernel has no modprobe for, in the order of `modules.dep`."""
    lines = (line.split(":") for line in (folder / "modules.dep").read_text().splitlines())
    needs = {module: needed.split() for module, needed in lines}
    wanted = [f"kernel/{each}.ko" for each in _MODULES]
    for name in dict.fromkeys(one for each in wanted for one in (*reversed(needs[each]), each)):
        with (folder / name).open("rb") as file:
            _check(_libc.syscall(_FINIT_MODULE, file.fileno(), b"", 0))


def _add_to_etc(packages: str) -> None:
    """Have what the packages bring, the user that rpcbind becomes, and what is exported."""
    own = Path("/run/etc")
    own.mkdir()
    users = Path("/etc/passwd").read_text()
    (own / "passwd").write_text(f"{users}\n_rpc:x:65533:65534::/run/rpcbind:/bin/false\n")
    options = "rw,sync,no_root_squash,no_subtree_check,insecure,fsid=0"
    (own / "exports").write_text(f"{EXPORTED} *({options})\n")
    _mount("overlay", "/etc", options=f"lowerdir={own}:{packages}/etc:/etc")


def _start_server() -> None:
    for folder in ("v4recovery", "rpc_pipefs", "sm", "sm.bak"):
        Path("/var/lib/nfs", folder).mkdir(parents=True)
    for name in ("etab", "rmtab", "state"):
        Path("/var/lib/nfs", name).touch()
    _mount("tmpfs", EXPORTED, options="size=64m")
    _mount("nfsd", "/proc/fs/nfsd")
    for name in ("lease", "grace"):
        Path(f"/proc/fs/nfsd/nfsv4{name}time").write_text("10")
    run("rpcbind")
    wait_for(Path("/run/rpcbind.sock").exists, 10)
    run("exportfs", "-a")
    run("rpc.nfsd", "4")
    run("rpc.mountd")


def _start_node(node: str, number: int, version: str) -> None:
    server, own = f"10.0.{number}.1", f"10.0.{number}.2"

    def begin() -> None:
        _check(_libc.unshare(_NEW_MOUNTS | _NEW_HOST_NAME | _NEW_NETWORK))
        _check(_libc.mount(None, b"/", None, _PRIVATE, None))
        _check(_libc.sethostname(node.encode(), len(node)))

    process = _start(node, begin)
    own_end = ["peer", "name", "uplink", "netns", f"{process}"]
    run("ip", "link", "add", "name", node, "type", "veth", *own_end)
    run("ip", "addr", "add", f"{server}/24", "dev", node)
    run("ip", "link", "set", "dev", node, "up")
    for device in ("lo", "uplink"):
        call(node, run, "ip", "link", "set", "dev", device, "up")
    call(node, run, "ip", "addr", "add", f"{own}/24", "dev", "uplink")
    Path(MOUNT).mkdir(parents=True, exist_ok=True)
    # With fsid=0 the export is the root that NFS 4 shows.
    path, options = (EXPORTED, "vers=3,nolock") if version == "3" else ("/", f"vers={version}")
    call(node, run, "mount.nfs", f"{server}:{path}", MOUNT, "-o", options)


def _start(node: str, begin: Callable[[], None]) -> int:
    """Have a process that does what `call` asks of this node; its number."""
    process = os.fork()
    if process == 0:
        try:
            begin()
            with Listener(_socket(node)) as listener:
                while True:
                    _answer(listener)
        finally:
            traceback.print_exc()
            os._exit(1)
    wait_for(Path(_socket(node)).exists, 10)
    return process


def _answer(listener: Listener) -> None:
    with listener.accept() as caller:
        function, arguments = caller.recv()
        try:
            answer = (True, function(*arguments))
        except Exception as error:
            answer = (False, error)
        caller.send(answer)


def _socket(node: str) -> str:
    return f"/run/{node}.socket"


def _command(command: list[str]) -> int:
    environment = {**os.environ, "TMPDIR": "/dev/shm", "HOME": "/run", "CI": "true"}
    return subprocess.run(command, env=environment, check=False).returncode


def _mount(kind: str, folder: str, options: str = "") -> None:
    Path(folder).mkdir(exist_ok=True)
    names = [each.encode() for each in (kind, folder, kind)]
    _check(_libc.mount(*names, 0, options.encode()))


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])  # this kernel adds parameters of its own
    except BaseException:
        traceback.print_exc()  # before the end of this Linux
    finally:
        os.sync()
        _libc.reboot(_POWER_OFF)
