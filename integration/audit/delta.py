"""The files of a Delta table's newest version, and when each was added, from the table's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from lowmark.integration.errors import AuditImpossible, ExtraMissing

_UNREAD = {
    "columnMapping": "its files name columns otherwise than the table",
    "deletionVectors": "some rows of its files may be deleted, which stands beside the files",
}
_IN_A_SESSION = "audit it in a session with lowmark.audit_table."


def live_files(folder: Path) -> Iterator[tuple[int, Path, int]]:
    """When each file of a table's newest version was added (nanoseconds), its path and its bytes, in no order.

    Raises AuditImpossible, ExtraMissing.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise ExtraMissing("an audit of a Delta table", "deltalake", "audit") from None
    named = f"the Delta table {str(folder)!r:.200}"
    try:
        table = DeltaTable(folder)
        actions = pa.table(table.get_add_actions(flatten=True))
    except (DeltaError, OSError, ValueError) as failed:
        raise AuditImpossible(f"the log of {named} cannot be read: {failed!s:.200}", _IN_A_SESSION) from failed
    features = set(table.protocol().reader_features or ())
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")  # version 2 of the protocol lists no features
    for feature, why in _UNREAD.items():
        if feature in features:
            raise AuditImpossible(f"{named} uses {feature}: {why}", _IN_A_SESSION)
    for action in actions.select(["path", "size_bytes", "modification_time"]).to_pylist():
        path = folder / unquote(action["path"])
        # A clone names the files of its origin, and a log of strangers could name any file of this machine.
        if urlsplit(action["path"]).scheme or not path.resolve().is_relative_to(folder.resolve()):
            fact = f"{named} names a file outside of its folder: {action['path']!r:.200}"
            raise AuditImpossible(fact, _IN_A_SESSION)
        yield action["modification_time"] * 1_000_000, path, action["size_bytes"]
