"""The ledger of bytes, admission, and the eviction queue."""
