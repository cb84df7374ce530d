"""What a person says of a running query, and what is left of it after the driver was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.drivers import by_hand
from tests.drivers.driven import Config
from tests.integration.cli.test_cli import call
from tests.integration.feed import Feed, us
from tests.servers.local import wait_until
from tests.worlds.torture import Driver

pytestmark = [pytest.mark.live, pytest.mark.slow]

# Each check runs a command. A query holds for a minute if a kill came before the heartbeat with the last report.
WAIT = {"seconds": 120, "every_seconds": 0.3}


class World:
    """A driver, its feed, and a person at the command line."""

    def __init__(self, folder: Path) -> None:
        self.config = Config(str(folder))
        self.feed = Feed(cast("Any", None), by_hand.feed_of(self.config))
        self.path = folder / "config.json"
        self.config.write(self.path)
        self.log = folder / "log"
        self.lives = 0

    @property
    def address(self) -> Path:
        return Path(self.config.folder, "address")

    def start(self) -> Driver:
        self.address.unlink(missing_ok=True)
        self.config.started.unlink(missing_ok=True)
        driver = Driver("by_hand", "run", [self.config], self.log)
        wait_until(lambda: self.config.started.exists() or not driver.alive(), "the start of the query", seconds=120)
        return driver

    def lowmark(self, *arguments: str) -> str:
        code, out, err = call(*arguments, "--connect", self.address.read_text())
        assert code == 0, err
        return out

    def status(self) -> dict[str, Any]:
        """The status of the stream; without splits until its query has asked for the first time."""
        _, out, _ = call("status", "orders", "--json", "--connect", self.address.read_text())
        services = json.loads(out).get("services", [])
        return cast("dict[str, Any]", services[0]["streams"][0]) if services else {"splits": {}, "by_hand": []}

    def await_windows(self, *expected: tuple[str, int]) -> None:
        wait_until(
            lambda: {window for window, _ in self.config.emitted()} == set(expected), f"windows {expected}", **WAIT
        )


def test_what_a_person_said_of_a_split_outlives_a_kill_until_the_split_speaks_and_what_was_set_does_not(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    world.feed.put(("a", 1, 0), ("dead", 1, 0))
    driver = world.start()
    try:
        world.feed.put(("a", 1, 30))
        wait_until(lambda: world.status()["splits"].get("dead", {}).get("state") == "active", "the splits", **WAIT)
        assert world.config.emitted() == []

        said = world.lowmark("idle", "orders", "dead", "--until-it-speaks")
        assert "left out by hand by" in said
        assert "until it speaks" in said
        world.await_windows(("a", 0), ("dead", 0))  # nothing else came: the reader of a quiet query listens

        said = world.lowmark("set", "orders", "--delay", "1m")
        assert "from the next batch on delay 1m, set by " in said
        assert "the code says 0s" in said
        world.feed.put(("a", 1, 60))
        wait_until(lambda: world.status()["counts"]["rows"] == 4, "the fourth row", **WAIT)
        assert world.status()["low_watermark_us"] == us(30) - 1_000
        assert "delay 1m, set by " in world.lowmark("explain", "orders")

        driver.kill()
        driver = world.start()
        world.feed.put(("a", 1, 61))
        world.await_windows(("a", 0), ("dead", 0), ("a", 30))  # the code's delay counts again
        assert world.status()["set_by_hand"] == []
        ((name, why),) = world.status()["by_hand"]
        assert (name, why.startswith("left out by hand by ")) == ("dead", True)
        assert "left out by hand" in world.lowmark("check", "orders")

        world.feed.put(("dead", 1, 75), ("a", 1, 90))
        wait_until(lambda: world.status()["splits"]["dead"]["state"] == "active", "the end of the mark", **WAIT)
        assert world.status()["by_hand"] == []
        world.feed.put(("a", 1, 120))
        world.await_windows(("a", 0), ("dead", 0), ("a", 30), ("a", 60))  # the low watermark waits at 75 again
    finally:
        driver.kill()
