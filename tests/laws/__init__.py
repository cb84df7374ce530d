"""Laws: properties that hold for every history."""
