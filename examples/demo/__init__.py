"""The demo: what Forebay does to a training loop, shown in under three minutes on one machine. Run it with ``scripts/demo``."""
