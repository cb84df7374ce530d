"""The package folders of this environment; an environment of another Spark has two: its pyspark, then .venv."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyspark


def site_packages() -> list[str]:
    """Return the package folders, the folder with pyspark first."""
    files = [module.__file__ for module in (pyspark, np)]
    return list(dict.fromkeys(str(Path(file).parents[1]) for file in files if file is not None))


def link_packages(names: Iterable[str], into: Path) -> None:
    """Link some packages into a folder."""
    for name in names:
        for place in site_packages():
            for installed in Path(place).glob(f"{name}*"):
                if not (into / installed.name).exists():
                    (into / installed.name).symlink_to(installed)
