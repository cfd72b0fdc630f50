"""The pages of `trainingrun ui`, served for a test, and what asks for them."""

import contextlib
import html
import http.client
import re
from collections.abc import Iterator

from trainingrun.cli.local_server import serving
from trainingrun.cli.ui.pages import Pages
from trainingrun.cli.ui.server import Ui
from trainingrun.client.sources import Cluster


class Asking:
    """Asks the pages as the browser does that has opened the link."""

    def __init__(self, ui: Ui) -> None:
        self.ui = ui
        _, _, headers = self.ask(ui.link().partition(ui.host)[2])
        self.cookie = headers["Set-Cookie"].split(";")[0]

    def ask(
        self, path: str, method: str = "GET", **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        """Status, text and headers; without a cookie, unless it is among the headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ui.server_port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

    def page(self, path: str = "/") -> str:
        """What is to be read on a page, its tags left out."""
        status, text, _ = self.ask(path, Cookie=self.cookie)
        assert status == 200, text
        body = re.sub(r"<style>.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)
        return " ".join(html.unescape(body).split())


@contextlib.contextmanager
def served(everywhere: bool = False, namespace: str | None = None) -> Iterator[Asking]:
    """The pages of the cluster that the kubeconfig names."""
    ui = Ui(0, Pages(Cluster(namespace), everywhere))
    with serving(ui):
        yield Asking(ui)
