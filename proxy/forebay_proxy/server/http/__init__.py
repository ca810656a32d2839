"""The HTTP side: routes of shards, plans, status and the page; what a request asks for is parsed in ``shard_route`` and ``core``."""
