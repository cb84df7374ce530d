"""Wires between Spark's processes and the driver: both ends of each."""
