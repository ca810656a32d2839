"""The sidecar. Importing this package loads nothing: training processes do it for ``forebay_proxy.wire``."""


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forebay_proxy.wire.protocol.version import VERSION  # noqa: PLC0415  # when it is asked for: finding it takes 10 ms

    return VERSION
