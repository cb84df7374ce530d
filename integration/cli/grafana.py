"""`lowmark grafana`: writes the package's dashboards and alert rules to files."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from lowmark.integration.console import print_json, print_lines
from lowmark.integration.errors import FolderRefused

from .common import Debug, Json

FILES = {
    "overview.json": "every stream of every driver; import it in Grafana: Dashboards, New, Import",
    "lowmark.json": "one stream; the same",
    "source.json": "what our sources read; the same",
    "alerts.yml": "name it under rule_files in prometheus.yml",
}


def _folder(text: str) -> Path:
    if not text:  # as of a variable that a shell does not know: the files would go into the current folder
        raise typer.BadParameter("it is empty; name a folder, or . for the current one")
    return Path(text)


def grafana(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="PATH", parser=_folder, help="A folder to write them into; it is made.")
    ],
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001  # read by Commands
) -> None:
    """Write the Grafana dashboards and the Prometheus alert rules into a folder.

    The files fit the metrics of LowWatermarkService(spark, metrics_port=...). Existing files are overwritten.
    """
    own = resources.files("lowmark") / "grafana"
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (out / name).write_text((own / name).read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as failed:
        raise FolderRefused(str(out), failed.strerror or str(failed)) from failed
    written = {str(out / name): what for name, what in FILES.items()}
    if as_json:
        print_json({"files": list(written)})
        return
    print_lines("\n".join(f"{path}: {what}" for path, what in written.items()))
