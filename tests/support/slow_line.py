"""A line to a server that passes on a number of bytes a second, for all connections together."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

_PIECE = 2**16


@contextlib.contextmanager
def slow_line(port: int | Callable[[], int], bytes_per_second: float) -> Iterator[int]:
    """A port of this machine that leads to another one on it.

    Args:
        port: the server's, or what says to which one a new connection leads.
        bytes_per_second: in each direction.
    """
    up, down = _Direction(bytes_per_second), _Direction(bytes_per_second)
    opened: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def begin(target: Callable[..., None], *arguments: socket.socket) -> None:
        threads.append(threading.Thread(target=target, args=arguments))
        threads[-1].start()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                leads_to = port() if callable(port) else port
                far = socket.create_connection(("127.0.0.1", leads_to))
                opened.extend((near, far))
                begin(up.pass_on, near, far)
                begin(down.pass_on, far, near)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        # Else the kernel takes megabytes at once that the line has not passed on yet.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE)
        begin(serve)
        try:
            yield int(listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            threads[0].join()
            for end in opened:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for end in opened:
                end.close()


class _Direction:
    """Bytes go one way, at most so many a second."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate, self._free_at, self._lock = bytes_per_second, time.monotonic(), threading.Lock()

    def pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(_PIECE):
                with self._lock:
                    now = time.monotonic()
                    self._free_at = max(self._free_at, now) + len(piece) / self._rate
                    wait = self._free_at - now
                time.sleep(wait)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)
