"""Lets torchvision's Python parts be imported beside a CPU build of torch: its wheel wants CUDA libraries for the operators it defines."""

import torch

_OPERATORS = torch.library.Library("torchvision", "DEF")
_OPERATORS.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_OPERATORS.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
