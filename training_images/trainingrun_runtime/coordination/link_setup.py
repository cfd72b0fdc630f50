"""How the ranks find and connect to each other, see `rank_links`."""

import hmac
import itertools
import secrets
import socket
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from .rank_links import RankUnreachable

_TOKEN_BYTES = 16
_RANK_BYTES = 4
_HELLO_S = 5.0
"""Seconds for a connection to say whose it is."""
_SILENCE_S = 30
"""Seconds after which a rank that sends no packet at all is lost. Ray's health checks find a dead
node in less; this is for a rank that they do not miss."""
_PROBE_S = 5
_made = itertools.count()


def links_to_all(rank: int, world_size: int, timeout_s: float) -> dict[int, socket.socket]:
    """Connect to every other rank of the default process group; all ranks call it.

    Each rank listens, and connects to those before it. The process group's store tells them where,
    and a token by which they know each other: anyone who reaches the port could send numbers.

    Returns:
        Non-blocking sockets, by rank.

    Raises:
        RankUnreachable: not every other rank has connected in that time, or this rank cannot
            connect to them. The others then find their connections to it closed.
    """
    deadline = time.monotonic() + timeout_s
    with ExitStack() as closed_on_error:
        try:
            links = _linked(rank, world_size, timeout_s, deadline, closed_on_error)
        except RankUnreachable:
            raise
        except OSError as error:
            raise RankUnreachable(
                f"rank {rank} cannot be connected to the others: {error}; ranks must be able to "
                "connect to each other, as for collectives"
            ) from error
        closed_on_error.pop_all()
    return links


def _linked(
    rank: int, world_size: int, timeout_s: float, deadline: float, opened: ExitStack
) -> dict[int, socket.socket]:
    store = dist.PrefixStore(f"trainingrun/links/{next(_made)}", _default_store())
    links = {}
    with _listener(_own_address(store), world_size) as listener:
        host, port = listener.getsockname()[:2]
        if rank == 0:
            store.set("token", secrets.token_bytes(_TOKEN_BYTES))
        store.set(f"rank {rank}", f"{port} {host}")
        token = _value(store, "token", deadline)
        for other in range(rank):
            address = _value(store, f"rank {other}", deadline).decode()
            links[other] = opened.enter_context(_connected(address, other, deadline))
            # At once: the next rank's address may come late, and this one waits for the hello.
            links[other].sendall(token + rank.to_bytes(_RANK_BYTES))
        while missing := set(range(rank + 1, world_size)) - links.keys():
            listener.settimeout(_left(deadline))
            try:
                link, _ = listener.accept()
            except TimeoutError:
                waited = ", ".join(map(str, sorted(missing)))
                raise RankUnreachable(
                    f"timed out waiting {timeout_s:g} s for rank {waited} to connect to {host}"
                ) from None
            opened.enter_context(link)
            caller = _whose(link, token, min(time.monotonic() + _HELLO_S, deadline))
            if caller in missing:
                links[caller] = link
            else:
                link.close()
    for link in links.values():
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _notice_silence(link)
        link.setblocking(False)
    return links


def _notice_silence(link: socket.socket) -> None:
    """Have an error raised where the other end has vanished without closing the connection."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": _SILENCE_S - 2 * _PROBE_S,
        "TCP_KEEPINTVL": _PROBE_S,
        "TCP_KEEPCNT": 2,
        # Nothing is probed while what was sent is not acknowledged. This also ends a connection
        # whose buffers are full, which the few numbers that ranks send do not fill.
        "TCP_USER_TIMEOUT": 1000 * _SILENCE_S,
    }
    for name, value in options.items():
        if hasattr(socket, name):  # which of them there are depends on the platform
            link.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _default_store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()  # it has no public name


def _own_address(store: Any) -> str:
    """The address from which this node reaches the one that has the store."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", "localhost")  # other stores are on one node
    family, kind, _, _, address = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def _listener(host: str, backlog: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, 0), family=family, backlog=backlog)


def _value(store: dist.Store, key: str, deadline: float) -> bytes:
    try:
        store.wait([key], timedelta(seconds=_left(deadline)))
        return bytes(store.get(key))
    except RuntimeError as error:  # among them DistStoreError
        raise RankUnreachable(f"{key} is not known to the other ranks: {error}") from error


def _connected(address: str, rank: int, deadline: float) -> socket.socket:
    port, _, host = address.partition(" ")
    try:
        return socket.create_connection((host, int(port)), _left(deadline))
    except OSError as error:
        raise RankUnreachable(
            f"rank {rank} is not reached at {host}:{port}: {error}; ranks must be able to connect "
            "to each other, as for collectives"
        ) from error


def _whose(link: socket.socket, token: bytes, deadline: float) -> int | None:
    """The rank at the other end; None: it has not said by then that it knows the token."""
    said = b""
    while len(said) < _TOKEN_BYTES + _RANK_BYTES:
        if time.monotonic() >= deadline:
            return None
        link.settimeout(_left(deadline))
        try:
            data = link.recv(_TOKEN_BYTES + _RANK_BYTES - len(said))
        except OSError:
            return None
        if not data:
            return None
        said += data
    known = hmac.compare_digest(said[:_TOKEN_BYTES], token)
    return int.from_bytes(said[_TOKEN_BYTES:]) if known else None


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)
