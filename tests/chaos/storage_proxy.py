"""A gateway before the bucket that answers badly. It runs in a pod, for `faults.storage_answers`.

Environment: TARGET is the real gateway's address; MODE what it does:
`503`, `429`: it answers so, as S3 does when it is overloaded; `throttled`: every second time;
`conflicts`: every second time 409, as S3 and Azure do where requests meet;
`forgetful`: files of checkpoints are taken and not kept;
`read-only`: what would change something is refused; `slow`: each answer takes DELAY_S, 2 s, longer;
`hanging`: nothing is answered at all.
"""

import asyncio
import itertools
import os

from aiohttp import ClientSession, web
from yarl import URL

TARGET, MODE = os.environ["TARGET"], os.environ["MODE"]
DELAY_S = float(os.environ.get("DELAY_S", "2"))
COUNT = itertools.count()
LONG_S = 3600.0
ERROR = "<Error><Code>{code}</Code><Message>{message}</Message></Error>"
KEPT_OUT = ("transfer-encoding", "connection", "content-encoding")
"""Headers of the answer that are this connection's."""


def refused(status: int, code: str, message: str) -> web.Response:
    text = ERROR.format(code=code, message=message)
    return web.Response(status=status, text=text, content_type="application/xml")


async def answer(request: web.Request) -> web.StreamResponse:
    """What MODE says, or what the real gateway does."""
    body = await request.read()
    match MODE:
        case "hanging":
            await asyncio.sleep(LONG_S)
        case "slow":
            await asyncio.sleep(DELAY_S)
        case "read-only" if request.method not in ("GET", "HEAD"):
            return refused(403, "AccessDenied", "Access Denied")
        case "503":
            return refused(503, "SlowDown", "Please reduce your request rate.")
        case "429":
            return refused(429, "TooManyRequests", "Please reduce your request rate.")
        case "conflicts" if next(COUNT) % 2:
            return refused(409, "OperationAborted", "A conflicting operation is in progress.")
        case "forgetful" if request.method == "PUT" and "/checkpoints/" in request.path:
            return web.Response(status=200, headers={"ETag": '"forgotten"'})
        case "throttled" if next(COUNT) % 2:
            return refused(503, "SlowDown", "Please reduce your request rate.")
    # The signature is over the path, the headers and the host as they came.
    url = URL(f"http://{TARGET}{request.raw_path}", encoded=True)
    session: ClientSession = request.app[SESSION]
    async with session.request(
        request.method, url, headers=request.headers, data=body, allow_redirects=False
    ) as real:
        content = await real.read()
        headers = {key: value for key, value in real.headers.items() if key.lower() not in KEPT_OUT}
        if request.method == "HEAD":  # the length of what it does not send
            response = web.StreamResponse(status=real.status, headers=headers)
            await response.prepare(request)
            await response.write_eof()
            return response
        return web.Response(status=real.status, headers=headers, body=content)


SESSION = web.AppKey("session", ClientSession)


async def main() -> None:
    """Listens as the real one does."""
    application = web.Application(client_max_size=2**30)
    application.router.add_route("*", "/{path:.*}", answer)
    async with ClientSession(auto_decompress=False) as session:
        application[SESSION] = session
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", int(os.environ.get("PORT", "7070"))).start()
        print("listening", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
