"""Something done again and again while a job works."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


@contextmanager
def repeating(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Call `action` every so many seconds, in a thread of its own; it must not raise."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            action()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
