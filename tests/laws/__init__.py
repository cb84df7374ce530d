"""Laws: what holds for every history."""
