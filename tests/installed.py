"""Where the packages of this environment lie: that of another Spark has pyspark, and behind it all of .venv."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyspark

__all__ = ["link_packages", "site_packages"]


def site_packages() -> list[str]:
    """The folders, the one with pyspark first."""
    files = [module.__file__ for module in (pyspark, np)]
    return list(dict.fromkeys(str(Path(file).parents[1]) for file in files if file is not None))


def link_packages(names: Iterable[str], into: Path) -> None:
    """Make a folder in which some packages are, and nothing else."""
    for name in names:
        for place in site_packages():
            for installed in Path(place).glob(f"{name}*"):
                if not (into / installed.name).exists():
                    (into / installed.name).symlink_to(installed)
