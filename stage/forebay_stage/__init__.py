"""Prepares shards: reads a data set through Forebay, transforms its samples, and writes WebDataset shards to a destination."""
