"""Those who do the works: processes of this program, engines that it starts, and servers that run already.

Each runs one work at a time and is asked in turn, so that only one of them works at any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import Protocol

import aiohttp

from benchmarks.messages import Do, Done, Facts, Failed, Ready, Run, Say, Settings, StepShape, decode_answer, encode
from benchmarks.streaming import complete
from benchmarks.works import Work
from loadgen.engine_process import EngineProcess, EngineStartError, engine_command

STOP_TIMEOUT = 3.0
_TAIL = 15  # lines of a process's output to show when it fails
_MESSAGE_BYTES = 64 * 1024 * 1024
_PR_SET_PDEATHSIG = 1


class PeerError(Exception):
    """A participant could not do a work; the message is for a person."""


class Participant(Protocol):
    """`run` and `start` raise PeerError. `say` gets a line now and then."""

    name: str

    async def start(self, say: Callable[[str], None]) -> None: ...
    async def run(self, work: Work, schedule: tuple[StepShape, ...], say: Callable[[str], None]) -> Run: ...
    async def stop(self) -> None: ...


class Worker:
    """A `benchmarks.worker` of a kind. It is in a session of its own, so that Ctrl-C reaches this program alone."""

    def __init__(self, name: str, kind: str, settings: Settings) -> None:
        self.name = name
        self.facts: Facts | None = None
        self._kind, self._settings = kind, settings
        self._process: asyncio.subprocess.Process | None = None
        self._lines: deque[str] = deque(maxlen=_TAIL)
        self._reader: asyncio.Task[None] | None = None

    async def start(self, say: Callable[[str], None]) -> None:
        if self._process is not None:
            return
        say("starting")
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.worker", self._kind, encode(self._settings).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MESSAGE_BYTES,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        self._reader = asyncio.create_task(self._read_errors(self._process))
        answer = await self._answer(say)
        if not isinstance(answer, Ready):
            raise PeerError(f"{self.name} answered {answer} when it was started")
        self.facts = answer.facts

    async def run(self, work: Work, schedule: tuple[StepShape, ...], say: Callable[[str], None]) -> Run:
        return await self.do(Do(work, schedule=schedule), say)

    async def do(self, do: Do, say: Callable[[str], None]) -> Run:
        process = self._process
        assert process is not None, "it was started"
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # then it has ended, and so does its output
            process.stdin.write(encode(do) + b"\n")
            await process.stdin.drain()
        answer = await self._answer(say)
        if not isinstance(answer, Done):
            raise PeerError(f"{self.name} answered {answer} when it was asked to run")
        return answer.run

    async def _answer(self, say: Callable[[str], None]) -> Ready | Done:
        assert self._process is not None
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = decode_answer(line)
            if isinstance(answer, Failed):
                raise PeerError(answer.reason)
            if not isinstance(answer, Say):
                return answer
            say(answer.text)
        code = await self._process.wait()
        assert self._reader is not None
        await asyncio.wait([self._reader], timeout=1.0)
        raise PeerError("\n  ".join([f"its process ended with exit code {code}", *self._lines]))

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while received := await process.stderr.read(65536):
            self._lines += [line for line in received.decode("utf-8", "replace").splitlines() if line.strip()]

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            if process.returncode is None:
                process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), STOP_TIMEOUT)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])


class Static:
    """The offline engine once more, batching statically: the same process."""

    name = "static"

    def __init__(self, offline: Worker) -> None:
        self._offline = offline

    async def start(self, say: Callable[[str], None]) -> None:
        await self._offline.start(say)

    async def run(self, work: Work, schedule: tuple[StepShape, ...], say: Callable[[str], None]) -> Run:
        return await self._offline.do(Do(work, batching="static"), say)

    async def stop(self) -> None:
        await self._offline.stop()


class Server:
    """An OpenAI-compatible server that runs already: all requests at once to `/v1/completions`, streamed or not."""

    def __init__(self, name: str, url: str, stream: bool) -> None:
        self.name, self.url = name, url.rstrip("/")
        self._stream = stream
        self._http: aiohttp.ClientSession | None = None
        self._model = ""

    async def start(self, say: Callable[[str], None]) -> None:
        if self._http is not None:
            return
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None, connect=30)
        )
        try:
            async with self._http.get(f"{self.url}/v1/models") as reply:
                self._model = json.loads(await reply.read())["data"][0]["id"]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise PeerError(f"{self.url} cannot be reached: {error}") from None
        except (ValueError, LookupError, TypeError):
            raise PeerError(f"{self.url}/v1/models does not list models as OpenAI's API does") from None

    async def run(self, work: Work, schedule: tuple[StepShape, ...], say: Callable[[str], None]) -> Run:
        assert self._http is not None, "it was started"
        try:
            return await complete(self._http, self.url, self._model, work, self._stream, say)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, LookupError, TypeError) as error:
            raise PeerError(f"{self.url}/v1/completions: {error or type(error).__name__}") from None

    async def stop(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()


class Serve:
    """`paged-engine serve`, started here on a free port. `peak_bytes` is the sum of its processes' peak memory."""

    name = "http"

    def __init__(self, settings: Settings, stream: bool) -> None:
        self.peak_bytes: int | None = None
        self._settings, self._stream_answers = settings, stream
        self._engine: EngineProcess | None = None
        self._server: Server | None = None

    async def start(self, say: Callable[[str], None]) -> None:
        if self._server is not None:
            return
        try:
            self._engine = EngineProcess((), say, engine_command(serve_options(self._settings)))
            await self._engine.__aenter__()
        except EngineStartError as error:
            raise PeerError(str(error)) from None
        self._server = Server(self.name, self._engine.url, self._stream_answers)
        await self._server.start(say)

    async def run(self, work: Work, schedule: tuple[StepShape, ...], say: Callable[[str], None]) -> Run:
        assert self._server is not None, "it was started"
        assert self._engine is not None
        try:
            return await self._server.run(work, schedule, say)
        finally:
            self._engine.measure()
            self.peak_bytes = self._engine.peak_rss_bytes

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()
        if self._engine is not None:
            await self._engine.stop()
        self._server = self._engine = None


def serve_options(settings: Settings) -> list[str]:
    """The same settings as the offline engine has, on the command line."""
    options = ["--model", settings.model, "--dtype", settings.dtype, "--kv-memory", str(settings.kv_memory)]
    options += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    return [*options, "--max-num-seqs", str(settings.max_num_seqs), "--quantize", settings.quantize]


def _die_with_parent() -> None:
    """In the child, before it starts: be told to end when this program is gone, also when that was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
