"""Processes of this machine, a few at a time: each makes one errand and ends. Threads only wait for them.

The processes are forked from one that has loaded the heavy libraries, so that a start costs no seconds. All of them end
when this process does, however it ends.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from queue import SimpleQueue
from typing import Any

from pipelines.process import Terminated
from pipelines.studies.gpus import VISIBLE
from pipelines.studies.point import Errand, Returned, run_point

Work = Callable[[Errand], Returned]
GRACE_SECONDS = 5.0  # between asking a process to stop and killing it
PRELOADED = ("pipelines.studies.preloaded",)


class Stopped(Exception):
    """The pool was stopped before the errand was done."""


class Pool:
    """Makes errands, each in a process of its own. A context manager: at its end no process is left.

    Args:
        work: What a process does; a function that its process can import.
        preloaded: Modules that are loaded once, in the process that the others are forked from.
        gpus: `CUDA_VISIBLE_DEVICES` of each process at a time; further ones wait. Empty: it is left as it is.
    """

    def __init__(self, work: Work = run_point, preloaded: Sequence[str] = PRELOADED, gpus: Sequence[str] = ()) -> None:
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(preloaded))
        self._do = work
        self._living: set[ForkServerProcess] = set()
        self._lock = threading.Lock()
        self._stopped = False
        self._gpus: SimpleQueue[str] | None = None
        if gpus:
            self._gpus = SimpleQueue()
            for share in gpus:
                self._gpus.put(share)

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def run(self, errand: Errand) -> Returned:
        """Start a process and wait until it has ended; a process that dies is an error of its errand.

        Raises:
            Stopped: If the pool was stopped meanwhile.
        """
        with self._gpu() as share:
            return self._run(errand, share)

    def _run(self, errand: Errand, gpu: str) -> Returned:
        started = time.monotonic()
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._start(errand, sender, gpu)
        sender.close()
        with suppress(EOFError):
            found: Returned = receiver.recv()
            process.join()
            self._ended(process)
            return found
        process.join()
        self._ended(process)
        if self._stopped:
            raise Stopped
        return Returned(errand.name, seconds=time.monotonic() - started, error=how_it_ended(process.exitcode))

    def stop(self) -> None:
        """Ask all processes to stop, and kill those that do not."""
        with self._lock:
            self._stopped = True
            living = list(self._living)
        for process in living:
            process.terminate()
        deadline = time.monotonic() + GRACE_SECONDS
        waiting: list[Any] = [process.sentinel for process in living]
        while waiting and time.monotonic() < deadline:
            ended = wait(waiting, deadline - time.monotonic())
            waiting = [each for each in waiting if each not in ended]
        for process in living:
            if process.is_alive():
                process.kill()

    @contextmanager
    def _gpu(self) -> Iterator[str]:
        """What a process gets of the GPUs, until it has ended; "" if nothing is shared out."""
        if self._gpus is None:
            yield ""
            return
        share = self._gpus.get()
        try:
            yield share
        finally:
            self._gpus.put(share)

    def _start(self, errand: Errand, sender: Connection, gpu: str) -> ForkServerProcess:
        with self._lock:
            if self._stopped:
                raise Stopped
            process = self._context.Process(target=_work, args=(self._do, errand, sender, gpu), name=errand.name)
            process.start()
            self._living.add(process)
        return process

    def _ended(self, process: ForkServerProcess) -> None:
        with self._lock:
            self._living.discard(process)


def _work(do: Work, errand: Errand, sender: Connection, gpu: str) -> None:
    """What a process does. CUDA reads its variable when it is first used, which is after this."""
    if gpu:
        os.environ[VISIBLE] = gpu
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent decides
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        sender.send(do(errand))
    except Exception as error:
        sender.send(Returned(errand.name, error=f"{type(error).__name__}: {error}"))
    except Terminated:
        os._exit(128 + signal.SIGTERM)  # everything is closed; there is nobody to tell


def _end_with_parent() -> None:
    """Stop when the process that waits for this one is gone."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def how_it_ended(code: int | None) -> str:
    """A process that left no result, in words."""
    if code is not None and code < 0:
        why = "; the system kills what takes too much memory: lower --workers" if code == -signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{why}"
    return f"its process ended with exit code {code} and without a word"
