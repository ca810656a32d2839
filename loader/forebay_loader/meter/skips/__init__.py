"""Skips: what handlers pass over is counted, listed and limited."""
