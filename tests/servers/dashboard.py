"""The dashboard's queries, with the variables filled in, for a real Prometheus."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from tests.servers.prometheus import Prometheus
from tests.test_grafana import DASHBOARD, DASHBOARDS, panels, variables

# The values that Grafana substitutes if all is selected and Prometheus scrapes every second.
_VALUES = {"stream": ".*", "query": ".*", "__rate_interval": "10s", "__range": "1m"}


@dataclass(frozen=True)
class PanelQuery:
    """One query of one panel, its variables substituted. `at` names it: "title, refId"."""

    at: str
    expression: str

    def values(self, prometheus: Prometheus, since_s: float) -> list[float]:
        """Return the values of all series at every second since then: everything the panel has shown."""
        found = prometheus.get(
            "query_range", query=self.expression, start=str(since_s), end=str(time.time()), step="1s"
        )
        return [float(text) for series in found["result"] for _, text in series["values"]]


def substituted(expression: str) -> str:
    """The expression with a value for every variable."""
    return re.sub(r"\$(\w+)", lambda found: _VALUES[found[1]], expression)


def panel_queries(*names: str) -> list[PanelQuery]:
    """Every query of every panel of these dashboards."""
    return [
        PanelQuery(f"{panel['title']}, {target['refId']}", substituted(target["expr"]))
        for name in names
        for panel in panels(DASHBOARDS[name])
        for target in panel.get("targets", [])
    ]


def offered(prometheus: Prometheus) -> dict[str, list[str]]:
    """The choices of each template variable."""
    found = {}
    for name, query in variables(DASHBOARD):
        values = re.fullmatch(r"label_values\((.*), (\w+)\)", query)
        assert values is not None, query
        found[name] = prometheus.get(f"label/{values[2]}/values", **{"match[]": substituted(values[1])})
    return found
