"""How docstrings become pages: examples, which tests run, are shown as a Python session, not as a quotation."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SESSION = re.compile(r"(?:^[ ]*>>> .*\n?)(?:^[ ]*\S.*\n?)*", re.MULTILINE)


class Sessions(Extension):
    """Fences every block that begins with ``>>>``, up to the next empty line."""

    def on_instance(self, *, obj: Object, **_: Any) -> None:
        """Called by griffe for each object that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = _SESSION.sub(_fenced, obj.docstring.value)


def _fenced(session: re.Match[str]) -> str:
    indent = session[0][: len(session[0]) - len(session[0].lstrip(" "))]
    return f"{indent}```pycon\n{session[0].rstrip()}\n{indent}```\n"
