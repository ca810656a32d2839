"""Listens to the facts of other rooms and keeps what people ask about: metrics, waits, origins, errors."""
