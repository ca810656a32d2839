"""Who is let in, and how they are answered."""
