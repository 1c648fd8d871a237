"""An engine that sleeps and wakes by HTTP.

Source: vllm/entrypoints/serve/dev/sleep/api_router.py and instrumentator/health.py of vLLM: POST
/sleep with `level` and `mode`, POST /wake_up, GET /is_sleeping; each may be repeated, and /health
answers 200 meanwhile.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


class SleepingEngine:
    """answers: the status of each change; other than 200 nothing is done."""

    def __init__(self) -> None:
        self.asleep = False
        self.asked: list[str] = []
        self.answers = 200

    async def sleep(self, request: web.Request) -> web.Response:
        """Put it to sleep."""
        assert request.query.get("mode", "abort") in {"abort", "wait", "keep"}
        return self._changed(request, asleep=int(request.query.get("level", "1")) > 0)

    async def wake_up(self, request: web.Request) -> web.Response:
        """Wake it."""
        return self._changed(request, asleep=False)

    async def is_sleeping(self, _request: web.Request) -> web.Response:
        """Whether it sleeps."""
        return web.json_response({"is_sleeping": self.asleep})

    def _changed(self, request: web.Request, *, asleep: bool) -> web.Response:
        self.asked.append(request.path_qs)
        if self.answers == 200:
            self.asleep = asleep
        return web.Response(status=self.answers)


@asynccontextmanager
async def serving(engine: SleepingEngine) -> AsyncIterator[int]:
    """The engine on loopback; its port."""
    app = web.Application()
    app.router.add_post("/sleep", engine.sleep)
    app.router.add_post("/wake_up", engine.wake_up)
    app.router.add_get("/is_sleeping", engine.is_sleeping)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
