"""What would have become of rows that are there: native Spark's rule and lowmark's over the same batches."""
