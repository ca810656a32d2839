"""Verbs about shards: check, try, warm, verify, ls, evict, set."""
