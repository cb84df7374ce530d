"""Parquet files with an encrypted column, whose key no reader has."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption


class _Keys(encryption.KmsClient):
    """Wraps a key by not wrapping it."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        del master_key_identifier
        return base64.b64encode(key_bytes).decode()


def encrypt(path: Path, rows: pa.Table, column: str) -> None:
    """Write a parquet file with one encrypted column and a footer in plain text."""
    how = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": [column]}, plaintext_footer=True)
    keys = encryption.CryptoFactory(lambda _: _Keys())
    properties = keys.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, rows.schema, encryption_properties=properties) as writer:
        writer.write_table(rows)
