"""`lowmark demo`: one stream, natively and with lowmark, side by side."""
