"""How far lowmark goes: measures its real parts at growing sizes, and says what breaks first.

    python -m tests.scale [--most 1000000] [--json FILE] [--smoke]

No Spark, no server and no JVM is started. `--json docs/pictures/how-far-it-goes.json` writes the figures that
`make pictures` draws. The whole run takes 13 minutes and 2.5 GB of memory; `--most 100000` about eight minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .model import (
    MORE_THAN_LINEAR,
    SCRAPE_SECONDS,
    Application,
    Check,
    Costs,
    checks,
    coordinator_shares,
    heartbeat_waits,
    limits,
    loop_share,
)
from .parts import (
    PARTS,
    Figure,
    coordinator_figures,
    coordinator_status_figure,
    driver_figures,
    loop_busy_ms,
    merge_figure,
    plan_figures,
)

SIZES = (1_000, 3_000, 10_000, 30_000, 50_000, 100_000, 300_000, 1_000_000)
MOST_TASKS = 100_000  # of the coordinator, and of a batch
MOST_PLANNED = 50_000  # splits of a planner
QUERIES, APPLICATIONS, SPLITS = 1_000, 100, 1_000_000


def measure(sizes: Sequence[int], turns: int | None) -> list[Figure]:
    """Measure every part at every size, in so many turns; say on standard error how far the run is."""
    found = list[Figure]()
    for size in sizes:
        began = time.monotonic()
        found += driver_figures(size, turns)
        found += plan_figures(size, turns) if size <= MOST_PLANNED else []
        if size <= MOST_TASKS:
            found += [merge_figure(size, turns=turns), *coordinator_figures(size, turns)]
            found.append(coordinator_status_figure(size, turns))
        print(f"{size:,}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    return found


def whole_loop(costs: Costs, shapes: Sequence[tuple[int, int]]) -> list[Check]:
    """Compare the real loop, with all its queries, with the sum that the model makes of its parts."""
    found = []
    for queries, splits in shapes:
        batches = 5
        measured = loop_busy_ms(queries, splits, batches)
        modelled = queries * batches * (costs.at("report", splits) + costs.at("answer", splits))
        what = f"the real loop: {queries} queries of {splits:,} splits, {batches} batches"
        found.append(Check(what, measured, modelled, "ms"))
    return found


def play(costs: Costs) -> list[dict[str, Any]]:
    """Play a thousand executors: 1,000,000 splits in 1,000 queries of 100 applications, in several shapes."""
    shapes = (
        ("100 applications of 10 queries of 1,000 splits", Application(QUERIES // APPLICATIONS, SPLITS // QUERIES)),
        ("one application of 1,000 queries of 1,000 splits", Application(QUERIES, SPLITS // QUERIES)),
        ("one query of 100,000 splits", Application(1, SPLITS // 10)),
        ("one query of 1,000,000 splits", Application(1, SPLITS)),
    )
    found = []
    for what, app in shapes:
        if app.splits > costs.largest("report"):
            continue
        busy, waits = heartbeat_waits(app, costs)
        found.append({
            "what": what, "splits": app.splits, "loop_share_by_rule": loop_share(app, costs), "loop_share_played": busy,
            "heartbeat_p99_seconds": sorted(waits)[int(0.99 * len(waits))],
            "offset_bytes": costs.at("offset", app.splits),
        })  # fmt: skip
    return found


def run(
    sizes: Sequence[int],
    shapes: Sequence[tuple[int, int]],
    streams: Sequence[int],
    turns: int | None = None,
    seconds: int = 5,
) -> dict[str, Any]:
    """Measure, model and compare.

    Args:
        sizes: numbers of splits, and of tasks; the first is one of the sizes that the model learns from.
        shapes: the loops that are run as a whole: (queries, splits of each).
        streams: numbers of streams at the coordinator that runs on the virtual clock.
        turns: how often each part is measured; None: more often where a turn is short.
        seconds: how long the coordinator on the virtual clock runs.
    """
    figures = measure(sizes, turns)
    costs = Costs(figures)
    groups = (("alone", lambda n: None), ("one group", lambda n: "all"), ("groups of two", lambda n: f"g{n // 2}"))
    coordinators = [
        {"tasks": tasks, "group": name, **asdict(coordinator_shares(tasks, group, seconds))}
        for tasks in streams
        for name, group in groups
    ]
    compared = checks(figures, costs) + whole_loop(costs, shapes)
    parts = {figure.part: costs.exponent(figure.part) for figure in figures}
    return {
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "commit": _commit()},
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1_024,
        "figures": [asdict(figure) for figure in figures],
        "exponents": parts,
        "checks": [{**asdict(check), "agrees": check.agrees} for check in compared],
        "played": play(costs),
        "coordinators": coordinators,
        "limits": [asdict(limit) for limit in limits(costs)],
    }


def smoke() -> dict[str, Any]:
    """Run everything once at small sizes."""
    return run((1_000, 1_500), [(2, 1_000)], [100], turns=1, seconds=1)


def table(result: dict[str, Any]) -> str:
    """The result for people."""
    lines = list[str]()
    sizes = sorted({figure["size"] for figure in result["figures"]})
    values = {(figure["part"], figure["size"]): figure["value"] for figure in result["figures"]}
    lines.append("Measured: " + "; ".join(f"{size:,}" for size in sizes) + "; last: the exponent, 1.0 is linear")
    for part, exponent in result["exponents"].items():
        each = [_figure(values.get((part, size)), PARTS[part].unit) for size in sizes]
        more = "  more than linear" if exponent > MORE_THAN_LINEAR else ""
        lines.append(f"  {PARTS[part].what:56} " + " ".join(f"{text:>9}" for text in each) + f"  {exponent:5.2f}{more}")
    good = sum(check["agrees"] for check in result["checks"])
    lines.append(f"\nMeasured beside modelled: {good} of {len(result['checks'])} within 20 %")
    for check in result["checks"]:
        off = check["modelled"] / check["measured"] - 1
        pair = " ".join(f"{_figure(check[side], check['unit']):>10}" for side in ("measured", "modelled"))
        lines.append(f"  {check['what']:76} {pair}  {off:+7.0%}{'' if check['agrees'] else '  DISAGREES'}")
    lines.append(f"\nPlayed on a virtual clock: trigger 10 s, a scrape each {SCRAPE_SECONDS:.0f} s")
    for played in result["played"]:
        lines.append(
            f"  {played['what']:52} loop busy {played['loop_share_played']:7.2%}"
            f" (by rule {played['loop_share_by_rule']:.2%})"
            f"  heartbeat p99 {played['heartbeat_p99_seconds'] * 1e3:10,.0f} ms"
            f"  offset {played['offset_bytes'] / 1e6:7.2f} MB a query"
        )
    lines.append("\nOne coordinator, a report of each stream in each second, without gRPC and journal")
    for each in result["coordinators"]:
        shape = f"{each['tasks']:,} streams, {each['group']}"
        lines.append(f"  {shape:40} busy {each['busy']:7.1%}  p99 {each['p99_ms']:9.2f} ms")
    lines.append("\nWhat breaks first")
    for limit in result["limits"]:
        beyond = "" if limit["measured"] else "  (beyond measured sizes)"
        lines.append(f"  {limit['size']:>12,} {limit['of']:50} {limit['what']}: {limit['setting']}{beyond}")
    lines.append(f"\nPeak memory of this run: {result['peak_memory_mb']:,} MB")
    return "\n".join(lines)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return f"{value / 1_000:,.0f} kB"
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--most", type=int, default=SIZES[-1], help="the largest number of splits")
    parser.add_argument("--json", type=Path, help="write the result to this file, too")
    parser.add_argument("--smoke", action="store_true", help="some seconds, small sizes")
    options = parser.parse_args()
    if options.smoke:
        result = smoke()
    else:
        sizes = [size for size in SIZES if size <= options.most]
        result = run(sizes, [(10, 1_000), (3, 10_000), (2, 30_000)], [1_000, 10_000])
    print(table(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
