"""Prometheus: metric families made from one snapshot of all queries."""
