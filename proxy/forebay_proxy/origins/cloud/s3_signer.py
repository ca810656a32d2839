"""The AWS SDK's leaf: credentials, regions, endpoints and signatures. Everything here blocks and runs in one thread of its own.

A signature costs 0.2 to 0.6 ms, a client 20 to 180 ms, a credential refresh (IMDS, STS, SSO) up to seconds: none of it belongs on the
loop, and one thread is enough because a shard is signed once in nine minutes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore import exceptions as sdk
from botocore.config import Config

from forebay_proxy.core.errors import InvalidShard, OriginError, OriginUnavailable, ShardForbidden
from forebay_proxy.origins.cloud.s3_request import SIGNED_FOR_S, ClientKey, S3Request, S3Signature, is_aws
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of

__all__ = ["Signer", "mapped_sdk_errors"]

Client = Any  # the SDK makes its client classes at run time

_CLIENTS_MAX = 16  # 13 MB each beyond the first; more than this many endpoints and profiles at once is not a training run


class Signer:
    """Not thread-safe: one thread calls it."""

    def __init__(self) -> None:
        self._clients: OrderedDict[ClientKey, Client] = OrderedDict()
        self._sessions: dict[str, boto3.Session] = {}  # by profile: whose credentials its clients sign with

    def own_profile(self) -> str:
        """The profile the SDK uses of itself (AWS_PROFILE, else "default")."""
        return str(_session("").profile_name)

    def home(self, shard: str, profile: str) -> AllowedPlace:
        """Where the operator's configuration of ``profile`` sends S3 requests; no credential is looked for.

        Who is about to be refused must not make the SDK ask files, commands or the metadata service for keys: a client that signs would.
        """
        with mapped_sdk_errors(shard), closing(self._new_client(ClientKey(profile, unsigned=True))) as client:
            return place_of(client.meta.endpoint_url)

    def sign(self, shard: str, order: S3Request, *, checksum: bool = False) -> S3Signature:
        """Presign one GET, without Range or If-Match: they would become part of the signature. Raises the ``ShardError`` family.

        ``checksum``: one HEAD that asks for the object's checksum instead, with the header that must be signed for that.
        """
        params: dict[str, Any] = {"Bucket": order.bucket, "Key": order.key}
        if order.version_id:
            params["VersionId"] = order.version_id
        if order.requester_pays:
            params["RequestPayer"] = "requester"
        with mapped_sdk_errors(shard):
            client = self._client(order.client)
            if checksum:
                params["ChecksumMode"] = "ENABLED"
            url = client.generate_presigned_url("head_object" if checksum else "get_object", Params=params, ExpiresIn=SIGNED_FOR_S)
        headers: tuple[tuple[str, str], ...] = (("x-amz-request-payer", "requester"),) if order.requester_pays else ()
        if checksum:
            headers = (*headers, ("x-amz-checksum-mode", "ENABLED"))
        return S3Signature(url, headers, client.meta.region_name)

    def reread(self, profile: str) -> bool:
        """Whether the credentials of a profile, read anew, are others than those its clients sign with; then these are dropped."""
        before = self._sessions.get(profile)
        try:
            if before is None or _keys(before) == _keys(_session(profile)):
                return False
        except (sdk.BotoCoreError, sdk.ClientError):
            return False  # what the origin said is nearer to the matter
        for key in [key for key in self._clients if key.profile == profile]:
            self._clients.pop(key).close()
        del self._sessions[profile]
        return True

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    def _client(self, key: ClientKey) -> Client:
        client = self._clients.get(key)
        if client is None:
            client = self._clients[key] = self._new_client(key)
        self._clients.move_to_end(key)
        if len(self._clients) > _CLIENTS_MAX:
            self._clients.popitem(last=False)[1].close()
        return client

    def _new_client(self, key: ClientKey) -> Client:
        session = self._sessions[key.profile] = self._sessions.get(key.profile) or _session(key.profile)
        return _new_client(session, key)


def _keys(session: boto3.Session) -> tuple[object, ...] | None:
    credentials = session.get_credentials()
    return None if credentials is None else tuple(credentials.get_frozen_credentials())


def _session(profile: str) -> boto3.Session:
    return boto3.Session(profile_name=profile or None)


def _new_client(session: boto3.Session, key: ClientKey) -> Client:
    client = _configured_client(session, key, path_style=bool(key.endpoint))
    style = (client.meta.config.s3 or {}).get("addressing_style")
    if not style and not is_aws(place_of(client.meta.endpoint_url)):
        # An endpoint from the environment or the configuration file: few of those serve a host name per bucket.
        client.close()
        client = _configured_client(session, key, path_style=True)
    return client


def _configured_client(session: boto3.Session, key: ClientKey, *, path_style: bool) -> Client:
    config = Config(
        signature_version=UNSIGNED if key.unsigned else "s3v4",
        response_checksum_validation="when_required",  # else a checksum header becomes part of the signature
        s3={"addressing_style": "path"} if path_style else None,
    )
    return session.client("s3", region_name=key.region or None, endpoint_url=key.endpoint or None, config=config)


@contextmanager
def mapped_sdk_errors(shard: str) -> Iterator[None]:
    """Errors of the AWS SDK inside become the ``ShardError`` family; texts are ours, because the SDK's may hold paths and URLs."""
    try:
        yield
    except (sdk.NoCredentialsError, sdk.PartialCredentialsError, sdk.CredentialRetrievalError) as error:
        raise ShardForbidden(
            shard,
            f"no usable AWS credentials ({type(error).__name__})",
            next_step="give the sidecar AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; a public bucket needs ?unsigned=1",
        ) from error
    except sdk.ProfileNotFound as error:
        raise ShardForbidden(shard, "the AWS profile does not exist", next_step="see the profiles in ~/.aws/config") from error
    except (sdk.SSOError, sdk.TokenRetrievalError) as error:
        raise ShardForbidden(shard, f"the AWS single sign-on ended ({type(error).__name__})", next_step="run aws sso login") from error
    except sdk.ParamValidationError as error:
        raise InvalidShard(shard, "the AWS SDK accepts neither this bucket name nor key") from error
    except sdk.SSLError as error:
        step = "see AWS_CA_BUNDLE: the authorities of the AWS SDK"
        raise OriginUnavailable(shard, "no TLS with the AWS credential service", next_step=step, hopeless=True) from error
    except (sdk.HTTPClientError, sdk.ConnectionError, sdk.MetadataRetrievalError) as error:
        raise OriginUnavailable(shard, f"the AWS credential service did not answer ({type(error).__name__})") from error
    except sdk.ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))[:64]
        next_step = "check the role and its trust policy"
        raise ShardForbidden(shard, f"the AWS credential service refused ({code})", next_step=next_step) from error
    except (sdk.BotoCoreError, ValueError) as error:
        raise OriginError(shard, f"the AWS SDK cannot sign this request ({type(error).__name__})") from error
