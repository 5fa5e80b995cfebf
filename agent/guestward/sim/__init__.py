"""A simulated PVE host behind the same doors, in virtual time: the real duties run on it and do not know."""
