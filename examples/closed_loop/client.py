"""A small client that keeps connections open and many requests under way; for simulations and benchmarks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

_CONNECTIONS = 32


class Client:
    """Posts JSON to a service at 127.0.0.1; ``connections`` requests at a time."""

    def __init__(self, port: int, token: str, connections: int = _CONNECTIONS) -> None:
        self._port = port
        self._head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self._size = connections
        self._idle: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def __aenter__(self) -> Client:
        for _ in range(self._size):
            self._idle.put_nowait(await asyncio.open_connection("127.0.0.1", self._port))
        return self

    async def __aexit__(self, *_: Any) -> None:
        while not self._idle.empty():
            self._idle.get_nowait()[1].close()

    async def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and body of the answer."""
        reader, writer = await self._idle.get()
        try:
            content = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            return await _answer(reader)
        finally:
            self._idle.put_nowait((reader, writer))

    async def post_all(self, path: str, bodies: Iterable[Any]) -> list[Any]:
        """The answers to many requests, all of which must succeed."""
        answers = await asyncio.gather(*(self.post(path, body) for body in bodies))
        for status, answer in answers:
            if status != 200:
                raise RuntimeError(f"{path} answered {status}: {answer}")
        return [answer for _, answer in answers]


async def _answer(reader: asyncio.StreamReader) -> tuple[int, Any]:
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
    return int(lines[0].split()[1]), json.loads(await reader.readexactly(length))
