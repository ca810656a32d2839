"""Processes beside the event loop through which the bytes of bodies go: origin to disk, with no byte of them in the loop."""
