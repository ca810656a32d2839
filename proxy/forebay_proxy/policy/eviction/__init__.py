"""Decides which segments get room and which leave: ledger, admission, eviction queue; ``cache/resident`` removes them."""
