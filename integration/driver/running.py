"""The services of this process: a notebook's cell that runs again gets its earlier service."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from lowmark.integration.errors import ServiceDiffers
from lowmark.integration.spark.sessions import Session


class Running:
    """Running services, each with the arguments that made it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._services: list[tuple[Any, Session, Mapping[str, Any]]] = []  # Any: the service, which knows this

    def find(self, spark: object, arguments: Mapping[str, Any]) -> Any:
        """Return the service of a session, None without one; raises `ServiceDiffers` if other arguments made it."""
        with self._lock:
            for service, session, made_with in self._services:
                if not session.is_of(spark):
                    continue
                others = [name for name, value in sorted(arguments.items()) if made_with.get(name) != value]
                differing = tuple(f"{name}={made_with.get(name)!r} (here {arguments[name]!r})" for name in others)
                if differing:
                    raise ServiceDiffers(differing)
                return service
        return None

    def stop_those_of_no_use(self) -> None:
        """Stop services that hold ports in vain: their Spark was stopped, or an error has ended them."""
        with self._lock:
            known = tuple(self._services)
        for service, session, _ in known:
            if session.ended or service.failed is not None:
                service.stop()

    def add(self, service: object, session: Session, arguments: Mapping[str, Any]) -> None:
        with self._lock:
            self._services.append((service, session, dict(arguments)))

    def remove(self, service: object) -> None:
        with self._lock:
            self._services = [each for each in self._services if each[0] is not service]
