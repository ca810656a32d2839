"""From a far origin to an epoch on two nodes: staged by two Ray nodes into an S3 store, read through sidecars that share a tier."""
