"""The demo and the stand-in PVE host that it and the end-to-end tests run against."""
