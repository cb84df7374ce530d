"""Errors nobody expects, raised in the middle of the product: what they leave behind."""
