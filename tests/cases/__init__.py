"""Acceptance cases taken as facts from the engines' own tests, as data, and the tests that run them."""
