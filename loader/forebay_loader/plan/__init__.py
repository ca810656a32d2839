"""Announces the shards that a worker will read: ``ahead`` looks ahead, ``plan_client`` tells the sidecar, whose ``plan_route`` hears it."""
