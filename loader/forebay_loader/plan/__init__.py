"""Announces what will be read."""
