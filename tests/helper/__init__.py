"""The root helper, as a real process behind a real socket. Hypothesis plays the same examples at every run."""

from hypothesis import settings

settings.register_profile("guestward", deadline=None, derandomize=True)
settings.load_profile("guestward")
