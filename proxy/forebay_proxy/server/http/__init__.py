"""The HTTP side: routes of shards, plans, status and the page; ``shard_route`` and ``shard_response`` parse with ``core``."""
