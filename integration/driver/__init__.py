"""The service in the driver: streams, their queries, and the low watermark of each."""
