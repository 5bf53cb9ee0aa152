"""The engine core's own process: `python -m engine.core_process --fd N`, over an inherited socket.

One thread reads frames into a queue, one writes them out, and the main thread steps the engine and waits for
neither: a slow API process costs it nothing. The socket's end is this process's end, so none is left behind.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine import log
from engine.config import EngineConfig
from engine.core import StepsFail
from engine.core_loop import CoreLoop, Incoming, Wake
from engine.faults import Faults
from engine.flight_recorder import FlightRecorder
from engine.framing import BadFrame, FrameSplitter, decode_to_core
from engine.garbage import look_rarely
from engine.invariants import InvariantViolated
from engine.last_words import LastWords
from engine.loading.errors import ModelError
from engine.loading.resolve import resolve_model
from engine.messages import Fatal, Located, Ready, Start
from engine.sender import Sender
from engine.threads import set_threads
from engine.watchdog import HUNG, Watchdog, end_anyway

if TYPE_CHECKING:
    from engine.core import EngineCore
    from engine.kv_publisher import KvPublisher

FAILED = 1  # exit code
BIND_SECONDS = 5.0  # that an endpoint of the engine before this one may still be in use
ABANDONED_SECONDS = 5.0  # that a build or a step may go on for when nobody waits for it any more
_log = logging.getLogger(__name__)


def _read(connection: socket.socket, inbox: queue.SimpleQueue[Incoming]) -> None:
    """Until the API process is gone, or says what makes no sense."""
    splitter = FrameSplitter()
    try:
        while data := connection.recv(1 << 16):
            for body in splitter.feed(data):
                inbox.put(decode_to_core(body))
    except OSError:
        pass
    except BadFrame as error:
        inbox.put(error)
        return
    inbox.put(None)
    threading.Timer(ABANDONED_SECONDS, os._exit, (FAILED,)).start()


def _build(config: EngineConfig, inbox: queue.SimpleQueue[Incoming], sender: Sender) -> EngineCore | None:
    """The engine, or None after saying why there is none."""
    try:
        resolved = resolve_model(config.model, config.seed)  # before torch: a wrong name is told at once
        sender.send(Located(str(resolved.folder), resolved.config.vocab_size))
        set_threads(threads=config.threads)
        from engine.build import Links, build_core

        return build_core(config, Links(wake=lambda: inbox.put(Wake()), pull=sender.send))
    except (ModelError, ValueError) as error:
        sender.send(Fatal(str(error), unusable=True))
    except MemoryError:
        sender.send(Fatal("not enough memory for this model and --kv-memory", unusable=True))
    except Exception as error:
        told = f"the engine could not start: {type(error).__name__}: {error}"
        log.event(_log, logging.CRITICAL, "engine_failed", told, error=error)
        sender.send(Fatal(told, unusable=False))
    return None


def _publisher(config: EngineConfig) -> KvPublisher | None:
    """Raises CannotPublish (a ValueError)."""
    if config.kv_events is None:
        return None
    from engine.kv_publisher import KvPublisher

    return KvPublisher(config.kv_events, patience=BIND_SECONDS if config.restarts else 0.0)


def _run(config: EngineConfig, inbox: queue.SimpleQueue[Incoming], sender: Sender) -> int:
    """An engine from its start to its end; the exit code."""
    try:
        publisher = _publisher(config)  # before the model: an endpoint in use is told at once
    except ValueError as error:
        sender.send(Fatal(str(error), unusable=True))
        return FAILED
    try:
        core = _build(config, inbox, sender)
        if core is None:
            return FAILED
        look_rarely()
        return _serve(core, config, inbox, sender, publisher)
    finally:
        if publisher is not None:
            publisher.close()


def _serve(
    core: EngineCore,
    config: EngineConfig,
    inbox: queue.SimpleQueue[Incoming],
    sender: Sender,
    publisher: KvPublisher | None,
) -> int:
    """Step until told to end; the exit code."""
    recorder = FlightRecorder(core.snapshot())
    last_words = LastWords(recorder, config.crash_dir, sender.send)

    def hung(age: float) -> None:
        """In the watchdog's thread: the main one is the one that hangs."""
        told = f"a step has not ended for {age:.0f} s (--step-timeout {config.step_timeout:g})"
        log.event(_log, logging.CRITICAL, "step_hung", f"{told}; the stacks of all threads follow")
        log.flush()
        faulthandler.dump_traceback(all_threads=True)
        last_words.tell(told)
        sender.close()
        _end(HUNG)

    watchdog = Watchdog(config.step_timeout, hung)
    publish = None if publisher is None else publisher.publish
    faults, tell_kv = Faults(config.faults), config.tell_kv
    loop = CoreLoop(core, inbox, sender, recorder, watchdog, faults, config.check_every, publish, tell_kv=tell_kv)
    where = None if publisher is None else publisher.where
    compatibility = None if core.connector is None else core.connector.compatibility
    sender.send(Ready(core.info, core.control, where, compatibility))
    try:
        loop.run()
    except BadFrame as error:
        _tell_bad_frame(error, sender)
        return FAILED
    except Exception as error:
        end_anyway()  # also where the disk of the crash file hangs
        last_words.tell(_failure(error), error)
        return FAILED
    return 0


def _failure(error: Exception) -> str:
    if isinstance(error, InvariantViolated):
        return f"the engine stopped: its books do not agree: {error}"
    if isinstance(error, StepsFail):
        return f"the engine stopped: {error}"
    return f"the engine failed: {type(error).__name__}: {error}"


def _tell_bad_frame(error: BadFrame, sender: Sender) -> None:
    told = f"the engine's process was told what makes no sense: {error}"
    log.event(_log, logging.CRITICAL, "bad_frame", told)
    sender.send(Fatal(told, unusable=False))


def _end(status: int) -> None:
    """At once: threads of numeric libraries must not hold it up."""
    log.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="engine.core_process", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket to the API process")
    connection = socket.socket(fileno=parser.parse_args(argv).fd)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # may reach the whole group; the parent decides
        signal.signal(number, signal.SIG_IGN)
    faulthandler.enable()  # a crash of native code says where it was
    inbox: queue.SimpleQueue[Incoming] = queue.SimpleQueue()
    sender = Sender(connection)
    threading.Thread(target=_read, args=(connection, inbox), name="reader", daemon=True).start()
    start = inbox.get()
    status = FAILED
    if isinstance(start, Start):
        config = start.config
        log.configure(config.log_format, config.log_level)
        status = _run(config, inbox, sender)
    elif start is not None:
        wrong = start if isinstance(start, BadFrame) else BadFrame("the first message does not start the engine")
        _tell_bad_frame(wrong, sender)
    sender.close()
    return status


if __name__ == "__main__":
    _end(main())
