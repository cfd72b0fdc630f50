"""The HTTP side of `trainingrun ui`: addresses, and what is sent with each page."""

from functools import cache
from http import HTTPStatus
from importlib import resources
from urllib.parse import parse_qsl, unquote

from ...api.errors import RunError
from ...client import object_names
from ..local_server import LocalHandler, LocalServer
from . import pages
from .pages import Page, Pages

_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'unsafe-inline'; "
    "img-src data:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Ui(LocalServer):
    """Serves the pages."""

    command = "trainingrun ui"
    same_site = "Lax"  # an address that somebody was sent opens

    def __init__(self, port: int, shown: Pages) -> None:
        """Begin to listen.

        Args:
            port: Where to listen; 0: any free port.
            shown: The pages.

        Raises:
            CliError: The port is taken.
        """
        super().__init__(port, _Handler)
        self.shown = shown


class _Handler(LocalHandler):
    server: Ui
    timeout = 60

    def admitted(self) -> None:
        if self.path == "/renew.js":
            self.answer(HTTPStatus.OK, _script(), "text/javascript")
            return
        try:
            found = self._page()
        except Exception as error:  # of which nobody knows: the sentence is all there is
            sentence = f"{self.path} cannot be shown: {type(error).__name__}: {error}"
            found = pages.problem(sentence, HTTPStatus.INTERNAL_SERVER_ERROR)
        headers = {"Content-Security-Policy": _POLICY}
        self.answer(found.status, found.html, "text/html", headers)

    def _page(self) -> Page:
        path, _, query = self.path.partition("?")
        fields = dict(parse_qsl(query))
        if namespace := fields.get("namespace", "").strip():
            try:
                object_names.of_namespace(namespace)
            except RunError as error:
                return pages.problem(str(error), HTTPStatus.BAD_REQUEST)
        match [unquote(part) for part in path.split("/")[1:]]:
            case [""]:
                return self.server.shown.fleet(fields)
            case ["runs", namespace, name, *rest] if object_names.is_of_namespace(
                namespace
            ) and object_names.is_of_object(name):
                if not rest:
                    return self.server.shown.run(namespace, name)
                if rest == ["logs"]:
                    return self.server.shown.logs(namespace, name, fields)
        return pages.problem(f"there is no page {path}; / has all runs")


@cache
def _script() -> str:
    return resources.files(__package__).joinpath("renew.js").read_text(encoding="utf-8")
