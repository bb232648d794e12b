"""Ctrl-C and SIGTERM end a job in order: by an exception that no `except Exception` holds up."""

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_COMMAND = "laser"
_MODULE = "-m"  # what Python calls a program while it looks for the module


class HalfStarted(KeyboardInterrupt):
    """A signal came while Ray started. Such a Ray aborts its process where that ends in order."""


class Signals(list[int]):
    """Numbers of the signals received; `are_late` once there is nothing left to interrupt."""

    are_late = False


def stop_quietly() -> None:
    """Have a Ctrl-C that meets no job end the process by one line; not in others' programs.

    Modules take seconds to load, and where they were says nothing to anybody. It may also come
    hours later, when a job has ended or something is only looked at: the line fits all of these.
    """
    if sys.argv[0] != _MODULE and os.path.basename(sys.argv[0]) != _COMMAND:  # noqa: PTH119
        return

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
        else:
            sys.__excepthook__(kind, error, trace)

    sys.excepthook = tell


@contextmanager
def interruptible() -> Iterator[Signals]:
    """Raise KeyboardInterrupt at the first signal; the list holds its number from then on.

    Not an exception of our own: Ray makes a KeyboardInterrupt of whatever a handler raises.

    While the job ends, another SIGTERM changes nothing (a process and its group may both get one),
    and another Ctrl-C ends the process at once. A first signal that is late raises nothing.
    """
    received = Signals()

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if not received.are_late:
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # what `nohup` and the like have switched off stays so
            signal.signal(number, stop)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Put back what answers to SIGTERM after a block that sets its own, as `ray.init` does.

    Ray's own answer is to exit; it is passed on to the one put back. Where a signal came before
    Ray set its own, SIGTERM is ignored by now, and stays so.

    Raises:
        HalfStarted: a signal came in the block.
    """
    handler: Any = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:
        signal.signal(signal.SIGTERM, handler)
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise HalfStarted from error
        raise
    except KeyboardInterrupt as error:
        raise HalfStarted from error
    finally:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:
            signal.signal(signal.SIGTERM, handler)


def leave_with(code: int) -> None:
    """Let this process end with `code` before anything that Ray has begun is taken down."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)  # what is registered last is called first


def shut_ray_down() -> None:
    """End a local Ray, or leave a cluster, if this process has started or joined one."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        ray.shutdown()
