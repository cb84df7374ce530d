"""Bytes that versions of lowmark have written, and that every later version reads."""
