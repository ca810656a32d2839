"""What a stage does to each sample: functions of the user's and ready-made steps, in the order of ``--map``."""

from forebay_stage.steps.checks import Sample, Step, applied
from forebay_stage.steps.parser import step_of, step_table

__all__ = ["Sample", "Step", "applied", "step_of", "step_table"]
