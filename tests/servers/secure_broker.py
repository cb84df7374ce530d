"""A broker with a listener of SASL_SSL beside the plain one: own certificate, one user."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers.kafka import Broker, kafka_broker
from tests.servers.local import LOCALHOST, free_ports

SECURE = """
listeners=PLAINTEXT://{host}:{{port}},SASL_SSL://{host}:{secure},CONTROLLER://{host}:{{controller_port}}
advertised.listeners=PLAINTEXT://{host}:{{port}},SASL_SSL://{host}:{secure}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
ssl.keystore.type=PEM
ssl.keystore.location={pem}
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_reader="{password}";
"""
PASSWORD = "hunter-2"
RIGHTS = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
"""The user of the secure listener has only the rights that a test gives, by the plain listener."""


def let_read(broker: Broker, topic: str, right_to: str = "READ") -> None:
    """Give the user of the secure listener the right to read a topic, or another one, and none to consumer groups."""
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    right = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:reader", "*",
        AclOperation[right_to], AclPermissionType.ALLOW,
    )  # fmt: skip
    broker.admin.create_acls([right])[right].result(30)


@contextmanager
def secure_broker(folder: Path, properties: str = "") -> Iterator[tuple[Broker, str, Mapping[str, str]]]:
    """Yield a broker, the address of its secure listener, and the client options for it.

    `properties` are more lines, such as RIGHTS.
    """
    key, certificate, both = folder / "key.pem", folder / "certificate.pem", folder / "both.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
        "-addext", f"subjectAltName=IP:{LOCALHOST}", "-keyout", str(key), "-out", str(certificate),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    both.write_text(key.read_text() + certificate.read_text())
    [secure] = free_ports(1)
    lines = SECURE.format(host=LOCALHOST, secure=secure, pem=both, password=PASSWORD) + properties
    with kafka_broker(folder / "kafka", lines) as broker:
        login = {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "reader",
            "sasl.password": PASSWORD, "ssl.ca.location": str(certificate),
        }  # fmt: skip
        yield broker, f"{LOCALHOST}:{secure}", login
