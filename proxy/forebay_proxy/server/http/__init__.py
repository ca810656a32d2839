"""The HTTP side: shards, plans, status, the page."""
