"""Guestward keeps the guests of an unattended Proxmox VE host up, and tells the truth about it."""

__version__ = "0.1.0"
