"""How long the server waits for a visitor to finish asking: whoever opens connections and says nothing keeps nobody out.

uvicorn closes connections that idle after an answer, and waits for the first request, or for the rest of one, for ever.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0  # for the head of a request; a browser sends it at once
BODY_SECONDS = 60.0  # for a photo of the largest size, over a slow line
MOST_SILENT = 64  # connections without a whole head; the oldest goes when one more comes


class PatientProtocol(H11Protocol):
    """A connection that is closed when its request's head does not come, in time or among too many of its kind."""

    header_seconds: ClassVar[float] = HEADER_SECONDS
    _silent: ClassVar[OrderedDict[PatientProtocol, asyncio.TimerHandle]] = OrderedDict()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()
        while len(self._silent) > MOST_SILENT:
            next(iter(self._silent))._give_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:  # a whole head has come, and its request is under way
            self._heard()

    def on_response_complete(self) -> None:
        self._wait()  # for the head of the next one
        super().on_response_complete()

    def _wait(self) -> None:
        self._heard()
        self._silent[self] = self.loop.call_later(self.header_seconds, self._give_up)

    def _heard(self) -> None:
        timer: Any = self._silent.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _give_up(self) -> None:
        self._heard()
        self.transport.abort()
