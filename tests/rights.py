"""Tests of files that a user may not reach, also where the tests run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_NOBODY = 65_534


@contextmanager
def without_rights_of_root() -> Iterator[None]:
    """Reach files as a user who is not root."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(mine)
