"""A small convolutional network that learns which photograph a crop was cut from, and whether it was mirrored."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Learner"]

CLASSES = 10


class Learner:
    """Network, optimiser and the record of both. ``losses`` has one number a step (nats); images are uint8, N x 3 x pixels x pixels."""

    def __init__(self, pixels: int, seed: int = 0) -> None:
        torch.manual_seed(seed)
        torch.set_num_threads(1)  # the other cores belong to the workers
        self.losses: list[float] = []
        self._right: list[float] = []
        self._network = nn.Sequential(
            *_block(3, 8),
            *_block(8, 16),
            *_block(16, 32),
            nn.Flatten(),
            nn.Linear(32 * (pixels // 8) ** 2, CLASSES),
        )
        self._optimiser = torch.optim.AdamW(self._network.parameters(), lr=2e-3)

    def step(self, images: Tensor, labels: Tensor) -> None:
        guesses = self._network(images.float() / 127.5 - 1)
        loss = nn.functional.cross_entropy(guesses, labels)
        self._optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()
        self.losses.append(loss.item())
        self._right.append((guesses.argmax(1) == labels).float().mean().item())

    def accuracy(self) -> float:
        """Share of right guesses over the last quarter of the steps, each made before the network had learned from that batch."""
        last = self._right[-max(1, len(self._right) // 4) :]
        return sum(last) / len(last) if last else 0.0


def _block(channels_in: int, channels_out: int) -> list[nn.Module]:
    return [nn.Conv2d(channels_in, channels_out, 3, padding=1), nn.BatchNorm2d(channels_out), nn.ReLU(), nn.MaxPool2d(2)]
