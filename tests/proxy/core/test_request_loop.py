"""request_loop.py: a sidecar knows its own request when it comes back."""

from __future__ import annotations

import pytest

from forebay_proxy.core.request_loop import CDN_LOOP, LoopDetected, LoopGuard


def test_a_request_that_comes_back_is_known() -> None:
    """Whatever others wrote around it, in one field line or several."""
    loop_guard = LoopGuard("ab12")
    mark = loop_guard.mark()[CDN_LOOP]
    for values in ([mark], [f"cdn.example, {mark}; x=y"], ["other", mark]):
        with pytest.raises(LoopDetected) as loop:
            loop_guard.heard(values)
        assert loop.value.status == 508
        assert not loop.value.retryable


def test_nothing_else_of_a_client_travels() -> None:
    """Marks are read out of the header, the rest stays behind."""
    assert LoopGuard("aa").heard(["evil.example;token=hunter2, forebay;id=0c, forebay;id=XYZ"]) == "forebay;id=0c"
    assert LoopGuard("aa").heard([]) == ""
    assert LoopGuard("aa").mark("")[CDN_LOOP] == "forebay;id=aa"


def test_a_header_does_not_grow_without_end() -> None:
    """More sidecars in a row than anybody would set up are a circle too."""
    many = ", ".join(f"forebay;id={number:x}" for number in range(9))
    with pytest.raises(LoopDetected, match="9 sidecars"):
        LoopGuard("aa").heard([many])


def test_without_an_instance_nothing_is_marked() -> None:
    """As a library, outside a sidecar, there is no way back."""
    assert LoopGuard().mark() == {}
    assert LoopGuard().heard(["forebay;id="]) == ""
