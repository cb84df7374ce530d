"""Replays stored rows in the same batches by native Spark's rule and by lowmark's, and counts late rows."""
