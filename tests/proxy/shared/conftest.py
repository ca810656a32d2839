"""The S3 servers, shared by the tests of this folder."""

from support.s3_servers import moto, rados_gateway

__all__ = ["moto", "rados_gateway"]
