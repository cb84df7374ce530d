"""Calls a user's function until it returns: its errors and its hanging are told, and nothing of its work is dropped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("lowmark")

_FIRST_SECONDS, _MOST_SECONDS = 1.0, 60.0
_HANGS_SECONDS = 60.0
_HANGS = "%s has not returned for %g s; what comes after it waits, the query goes on"


def insist(call: Callable[[], object], what: str, stopped: threading.Event) -> bool:
    """Call until the call returns; wait 1 to 60 seconds after an error. Returns whether the function has returned.

    The function is called once also if `stopped` is set, because its caller tells nobody else of it.
    """
    pause_seconds = _FIRST_SECONDS
    while True:
        hangs = threading.Timer(_HANGS_SECONDS, log.error, [_HANGS, what, _HANGS_SECONDS])
        hangs.daemon = True
        try:
            hangs.start()  # in here, because the system may have no thread left
            call()
        except BaseException as failed:  # a callback may leave by SystemExit, and its work is not done
            log.exception("%s failed (%s); it is tried again in %g s", what, failed, pause_seconds)
        else:
            return True
        finally:
            hangs.cancel()
        if stopped.wait(pause_seconds):
            return False
        pause_seconds = min(2 * pause_seconds, _MOST_SECONDS)
