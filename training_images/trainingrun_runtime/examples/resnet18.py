"""ResNet-18 for images of 28 x 28 pixels with one channel."""

import torch
from torch import nn


class Block(nn.Module):
    """Two convolutions, and what came in added to what comes out."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the class says."""
        return torch.relu(self.convolutions(x) + self.shortcut(x))


def resnet18(width: int = 64, classes: int = 10) -> nn.Module:
    """Eight blocks in four stages.

    The stem is a 3 x 3 convolution without pooling: the original's would leave 7 x 7 pixels.

    Args:
        width: Channels of the first stage; each further stage has twice as many.
        classes: Answers to choose from.
    """
    stages: list[nn.Module] = []
    inside = width
    for stage in range(4):
        outside = width * 2**stage
        stages += [Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *stages,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(inside, classes),
    )
