"""What every test may rely on: a clean environment, and a reason in words when a real part is missing."""

from __future__ import annotations

import os
import shutil
import signal

import hypothesis
import pytest

# The machine is shared: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("shared machine", deadline=None)
hypothesis.settings.load_profile("shared machine")

# A shell lets what it starts in the background ignore Ctrl-C, and so would every program the tests start and signal.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

# Settings of the person who runs the tests must not reach into them, nor their accounts.
_FOREIGN = (
    "FOREBAY_", "AWS_", "HF_", "HUGGING_FACE_", "GOOGLE_", "CLOUDSDK_", "STORAGE_EMULATOR", "GOPEN_", "WDS_", "SLURM_", "TORCHELASTIC_",
    "SSL_CERT_",
)  # fmt: skip
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_KEPT = ("FOREBAY_VENV", "FOREBAY_PHOTOGRAPHS", "FOREBAY_APT")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*commands): skip, saying so, unless these commands are installed")
    config.addinivalue_line("markers", "once: no webdataset in it, so one environment is enough")


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = [command for mark in item.iter_markers("needs") for command in mark.args if shutil.which(command) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}: scripts/test installs it when run as root on Debian")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No setting of the machine reaches a test; neither AWS nor Google looks for a metadata service."""
    for name in list(os.environ):
        if (name.startswith(_FOREIGN) and name not in _KEPT) or name.lower() in _PROXIES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
