"""Listening sockets, the identity of clients, and the rules of access."""
