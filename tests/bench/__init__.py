"""Benchmarks: native Spark against lowmark, paired in one run. `make bench`, or `python -m tests.bench --quick`."""
