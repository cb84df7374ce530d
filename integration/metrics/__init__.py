"""Prometheus: one snapshot of all queries in, metric families out."""
