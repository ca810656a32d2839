"""What ``forebay run`` puts before a training script: webdataset's openers are ours as soon as it is imported, and the script is unchanged.

``path/`` is the folder for ``PYTHONPATH`` (or for a ``.pth``, ``forebay takeover install``). Its hook imports ``openers`` here once
webdataset itself is imported and a sidecar is named; ``report`` tells the ``forebay run`` above what became of it.
"""
