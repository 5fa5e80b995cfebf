"""Unit tests. Hypothesis plays the same examples at every run, and a busy machine is no failure."""

from hypothesis import settings

settings.register_profile("guestward", deadline=None, derandomize=True)
settings.load_profile("guestward")
