"""How segments come into the cache: room, flights, writing."""
