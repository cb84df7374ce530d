"""Tests of `lowmark.sources`."""
