"""Values of the domain. Nothing here does I/O or imports anything else of ours."""
