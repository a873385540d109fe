"""A bare C thread that works for a while and writes an eventfd, which a callback of the loop reads.

It measures the least possible time from completion to resumption on the running loop: there is no
runtime, no Future and no task. It works on the core where the loop sleeps, or on another one: the
kernel would choose, now this, now that, and in a virtual machine a wake-up across cores takes 20 us
more. The C compiler of the machine compiles it on first use. Linux only.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final, Self

from benchmarks.peers import MissingPeerError

__all__ = ["BareThread"]

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

static int asked, told;
static volatile int core;
static volatile double done;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *work(void *unused)
{
    uint64_t microseconds;
    (void)unused;
    while (read(asked, &microseconds, sizeof microseconds) == sizeof microseconds) {
        uint64_t one = 1;
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)core, &set);
        sched_setaffinity(0, sizeof set, &set); /* may move it: before the work begins */
        const double end = now() + 1e-6 * (double)(microseconds - 1);
        while (now() < end) { }
        done = now();
        if (microseconds == 1 || write(told, &one, sizeof one) != sizeof one) break;
    }
    return NULL;
}

int begin(int asked_fd, int told_fd, pthread_t *thread)
{
    asked = asked_fd;
    told = told_fd;
    return pthread_create(thread, NULL, work, NULL);
}

int here(void) { return sched_getcpu(); }
void go_to(int wanted) { core = wanted; }
double done_at(void) { return done; }
void end(pthread_t thread) { pthread_join(thread, NULL); }
"""


class BareThread:
    """The thread; it runs until the end of its `with` block."""

    def __enter__(self) -> Self:
        compiler = shutil.which("cc")
        if compiler is None or not hasattr(os, "eventfd"):
            raise MissingPeerError("a bare C thread: no cc, or no eventfd")
        with tempfile.TemporaryDirectory() as folder:
            source, library = Path(folder) / "bare.c", Path(folder) / "bare.so"
            source.write_text(SOURCE)
            command = [compiler, "-O2", "-shared", "-fPIC", "-pthread", str(source), "-o"]
            subprocess.run([*command, str(library)], check=True)
            self._library = ctypes.CDLL(str(library))
        self._library.done_at.restype = ctypes.c_double
        self._asked, self._told = os.eventfd(0), os.eventfd(0, os.EFD_NONBLOCK)
        self._thread = ctypes.c_ulong()
        if self._library.begin(self._asked, self._told, ctypes.byref(self._thread)) != 0:
            raise MissingPeerError("a bare C thread: pthread_create failed")
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._asked, 1)
        self._library.end(self._thread)
        os.close(self._asked)
        os.close(self._told)

    async def sample(self, seconds: float, loop_name: str, *, apart: bool = False) -> float:
        """Seconds from the end of that much work to the first line of the callback.

        Args:
            seconds: how long the thread works.
            loop_name: which loop runs.
            apart: it works on another core than the loop.
        """
        here = self._library.here()
        others = os.sched_getaffinity(0) - {here}
        self._library.go_to(min(others) if apart and others else here)
        if loop_name.startswith("trio"):
            import trio

            self._ask(seconds)
            await trio.lowlevel.wait_readable(self._told)
            resumed = time.perf_counter()
        else:
            loop = asyncio.get_running_loop()
            called: asyncio.Future[float] = loop.create_future()
            loop.add_reader(self._told, _tell, called)
            self._ask(seconds)
            resumed = await called
            loop.remove_reader(self._told)
        os.eventfd_read(self._told)
        return resumed - float(self._library.done_at())

    def _ask(self, seconds: float) -> None:
        os.eventfd_write(self._asked, 1 + round(seconds * 1e6))


def _tell(called: asyncio.Future[float]) -> None:
    now = time.perf_counter()
    if not called.done():
        called.set_result(now)
