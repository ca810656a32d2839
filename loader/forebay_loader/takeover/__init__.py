"""The takeover: makes an unchanged training script read shards through the sidecar, under ``forebay run`` or ``forebay takeover install``.

The folder ``path/`` is put on ``PYTHONPATH``, or into a ``.pth`` file. Its hook waits until webdataset is imported. If a sidecar is
configured, it then imports ``openers``, which replaces webdataset's openers by ours. ``base.takeover_report`` tells ``forebay run`` which
processes read through the sidecar.
"""
