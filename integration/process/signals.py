"""Handles signals for a while."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


@contextmanager
def on_signals(signals: Sequence[signal.Signals], handler: Callable[[int, object], None]) -> Iterator[None]:
    """Handle these signals in the block."""
    before = {each: signal.signal(each, handler) for each in signals}
    try:
        yield
    finally:
        for each, handled in before.items():
            signal.signal(each, handled)
