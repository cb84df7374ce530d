"""The name of the person who runs this process."""

from __future__ import annotations

import getpass
import os


def user() -> str:
    """Return the name of the user of this process, else the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have no name for its user
        return f"user {os.geteuid()}"
