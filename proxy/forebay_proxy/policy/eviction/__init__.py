"""Who holds bytes, who may come in, and which leave first."""
