"""The real doors of `ports`."""
