"""Acceptance cases, taken as facts from the tests of other engines: the data, and the tests that run the cases."""
