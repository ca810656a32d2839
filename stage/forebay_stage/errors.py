"""What can go wrong with a stage; the shape is that of the sidecar's errors, and the command line prints both the same way."""

from __future__ import annotations

from forebay_proxy.core.errors import ForebayError

__all__ = ["DestinationFailed", "SampleFailed", "ShardTorn", "StageBusy", "StageError", "StageRefused"]


class StageError(ForebayError):
    """A stage cannot go on. The message names the shard or the object, the cause and the numbers."""

    title = "Stage failed"
    usual_step = "remove the cause and run the same command again: it continues with what is missing"

    def __reduce__(self) -> tuple[type[StageError], tuple[object, ...], dict[str, object]]:
        """Engines carry errors from one process to another. The message is in ``args``; a class with other arguments says its own."""
        return type(self), self.args, self.__dict__


class SampleFailed(StageError):
    """A step failed on one sample, or returned something that is no sample. The stage counts it and stops above ``--max-failed``."""

    title = "Sample failed"
    usual_step = "correct the step, or allow some failures with --max-failed"

    def __init__(self, key: str, step: str, cause: str) -> None:
        super().__init__(f"sample {key}: step {step}: {cause}")
        self.key = key
        self.step_name = step
        self.cause = cause

    def __reduce__(self) -> tuple[type[StageError], tuple[object, ...], dict[str, object]]:
        return type(self), (self.key, self.step_name, self.cause), self.__dict__


class ShardTorn(StageError):
    """All bytes of a shard of SRC came, and its tar is cut or broken. The stage counts it as one sample that failed."""

    title = "Shard torn"
    usual_step = (
        "upload that shard whole (`forebay check URL` says what the origin has) and stage to another DST, "
        "or go on with the samples before the fault: --max-failed"
    )


class StageBusy(StageError):
    """Another stage holds the lock of this destination."""

    title = "Destination in use"
    usual_step = "wait until the other stage ends; after its machine died, its lock expires within two minutes"


class StageRefused(StageError):
    """Nothing was done: the destination holds something else, or SRC is not what this stage began with."""

    title = "Stage refused"


class DestinationFailed(StageError):
    """The destination refused or failed: no right to write, no room, no answer, or other bytes than those that were written."""

    title = "Destination failed"
