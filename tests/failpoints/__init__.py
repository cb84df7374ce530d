"""Effects of unexpected errors raised inside the product."""
