"""Lets a Python process of Spark's import the installed pyspark, instead of the same pyspark from an archive.

Spark puts the pyspark.zip of its home at the front of each process's path. Python compiles what comes from an archive
anew in each process, for half a second, before the process connects to Spark, which waits for it for ten seconds.
A pyspark that was installed with pip has that archive inside. Then the archive goes to the end of the path.

Python imports this module at its start. An environment's own `sitecustomize` follows.
"""

import sys
from os import path

__all__: list[str] = []

_ARCHIVE = path.join("pyspark", "python", "lib", "pyspark.zip")  # noqa: PTH118  # no other import: it would cost time


def _prefer_installed() -> None:
    archive = next((entry for entry in sys.path if entry.endswith(_ARCHIVE)), None)
    if archive is None:
        return
    lib = path.dirname(archive)  # noqa: PTH120
    others = [entry for entry in sys.path if path.dirname(entry) != lib]  # noqa: PTH120
    found = (path.join(entry, "pyspark", "__init__.py") for entry in others)  # noqa: PTH118
    first = next(filter(path.isfile, found), None)
    inside = path.join(archive.removesuffix(_ARCHIVE), "pyspark", "__init__.py")  # noqa: PTH118
    if first is not None and path.isfile(inside) and path.samefile(first, inside):  # noqa: PTH113, PTH121
        sys.path[:] = [*others, *(entry for entry in sys.path if entry not in others)]


def _run_next() -> None:
    here = path.dirname(__file__)  # noqa: PTH120
    sys.path[:] = [entry for entry in sys.path if entry != here]
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as missing:
        if missing.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", ours)


if __name__ == "sitecustomize":
    _prefer_installed()
    _run_next()
