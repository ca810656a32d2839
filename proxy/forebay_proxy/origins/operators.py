"""What the operator of a sidecar names for each service, in the settings and in the environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from forebay_proxy.config.settings import Settings
from forebay_proxy.origins.cloud.gs import emulator_endpoint

__all__ = ["operator_endpoints", "operator_profiles"]


def operator_endpoints(settings: Settings, environ: Mapping[str, str]) -> list[str]:
    """Endpoints that the environment and the settings name for a service: named by the operator, so they may be private ones."""
    named = [value for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HF_ENDPOINT") if (value := environ.get(name))]
    gs = settings.gs_endpoint or emulator_endpoint(environ.get("STORAGE_EMULATOR_HOST", ""))
    return [*named, gs] if gs else named


def operator_profiles(settings: Settings, environ: Mapping[str, str]) -> frozenset[str]:
    """Profiles of AWS credentials that a request may name."""
    own = (environ.get("AWS_PROFILE"), environ.get("AWS_DEFAULT_PROFILE"))
    return frozenset(settings.allow_profile) | {name for name in own if name}
