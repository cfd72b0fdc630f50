"""Ports of this machine."""

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(each.getsockname()[1]) for each in found]


def free_port() -> int:
    """One of them."""
    return free_ports(1)[0]
