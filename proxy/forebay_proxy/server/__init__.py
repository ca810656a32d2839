"""Admits clients, and answers their requests."""
