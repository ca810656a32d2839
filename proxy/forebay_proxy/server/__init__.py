"""Which clients are let in, and how requests are answered."""
