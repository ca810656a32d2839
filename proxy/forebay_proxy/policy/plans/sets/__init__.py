"""Sets of shards: patterns, templates, and where their readers stand."""
