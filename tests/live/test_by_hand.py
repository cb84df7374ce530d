"""What a person says of a running query, and what is left of it after the driver was killed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from tests.drivers import by_hand
from tests.drivers.driven import Config
from tests.integration.cli.test_cli import run
from tests.integration.feed import Feed
from tests.servers.local import wait_until
from tests.worlds.torture import Driver

pytestmark = [pytest.mark.live, pytest.mark.slow]


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
        done = run(*arguments, "--connect", self.address.read_text())
        assert done.returncode == 0, done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        """The status of the stream; without splits until its query has asked for the first time."""
        done = run("status", "orders", "--json", "--connect", self.address.read_text())
        services = json.loads(done.stdout).get("services", [])
        return cast("dict[str, Any]", services[0]["streams"][0]) if services else {"splits": {}, "by_hand": []}

    def await_windows(self, *expected: tuple[str, int]) -> None:
        wait_until(
            lambda: {window for window, _ in self.config.emitted()} == set(expected), f"windows {expected}", seconds=60
        )


def test_a_dead_split_stays_left_out_over_a_kill_until_it_speaks(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.feed.put(("a", 1, 0), ("dead", 1, 0))
    driver = world.start()
    try:
        world.feed.put(("a", 1, 30))
        wait_until(lambda: world.status()["splits"].get("dead", {}).get("state") == "active", "the splits", seconds=60)
        assert world.config.emitted() == []

        said = world.lowmark("idle", "orders", "dead", "--until-it-speaks")
        assert "left out by hand by" in said
        assert "until it speaks" in said
        world.await_windows(("a", 0), ("dead", 0))  # nothing else came: the reader of a quiet query listens

        driver.kill()
        driver = world.start()
        world.feed.put(("a", 1, 60))
        world.await_windows(("a", 0), ("dead", 0), ("a", 30))
        ((name, why),) = world.status()["by_hand"]
        assert (name, why.startswith("left out by hand by ")) == ("dead", True)
        assert "left out by hand" in world.lowmark("check", "orders")

        world.feed.put(("dead", 1, 75), ("a", 1, 90))
        wait_until(lambda: world.status()["splits"]["dead"]["state"] == "active", "the end of the mark", seconds=60)
        assert world.status()["by_hand"] == []
        world.feed.put(("a", 1, 120))
        world.await_windows(("a", 0), ("dead", 0), ("a", 30), ("a", 60))  # the low watermark waits at 75 again
    finally:
        driver.kill()


def test_a_delay_that_a_person_set_counts_until_the_driver_is_started_again(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.feed.put(("a", 1, 0))
    driver = world.start()
    try:
        wait_until(lambda: world.status()["splits"].get("a", {}).get("state") == "active", "the split", seconds=60)
        said = world.lowmark("set", "orders", "--delay", "1m")
        assert "from the next batch on delay 1m, set by " in said
        assert "the code says 0s" in said
        world.feed.put(("a", 1, 30))
        wait_until(lambda: world.status()["counts"]["rows"] == 2, "the second row", seconds=60)
        assert "delay 1m, set by " in world.lowmark("explain", "orders")
        assert world.config.emitted() == []

        driver.kill()
        driver = world.start()
        world.feed.put(("a", 1, 31))
        world.await_windows(("a", 0))
        assert world.status()["set_by_hand"] == []
    finally:
        driver.kill()
