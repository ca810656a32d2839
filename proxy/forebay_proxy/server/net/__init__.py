"""Sockets and peers: who is at the other end, and whether they may talk."""
