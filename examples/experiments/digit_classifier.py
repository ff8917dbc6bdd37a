"""The classifier that looks at filled-in digits: the published code's net."""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from experiment_images import Part
from torch import Tensor, nn
from tqdm import tqdm


def classifier_net() -> nn.Sequential:
    """Two convolutions and two linear layers, 21,840 parameters.

    Returns:
        The net.
    """
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, 5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, 10),
    )


def trained_classifier(part: Part, n_epochs: int, seed: int, file: Path) -> nn.Module:
    """Train it, or find it trained.

    Args:
        part: Images to train on, none of which it judges.
        n_epochs: How many epochs.
        seed: Of weights and order.
        file: Where its weights are kept.

    Returns:
        The net, in eval mode: the published code leaves dropout on.
    """
    torch.manual_seed(seed)
    net = classifier_net()
    if file.exists():
        net.load_state_dict(torch.load(file))
        return net.eval()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for _ in tqdm(range(n_epochs), "classifier", leave=False, disable=None):
        for rows in torch.randperm(len(part.x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(net(part.x[rows]), part.labels[rows]).backward()
            optimizer.step()
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), file)
    return net.eval()


@torch.no_grad()
def probabilities(net: nn.Module, x: Tensor) -> Tensor:
    """What the classifier says.

    Args:
        net: The classifier.
        x: Images, also flat ones and any number of batch dimensions.  # [*, 784]

    Returns:
        Probabilities of the digits.  # [*, 10]
    """
    flat = x.reshape(-1, 1, 28, 28)
    found = torch.cat([net(rows).softmax(1) for rows in flat.split(2000)])
    return found.reshape(*x.shape[: x.dim() - 1], 10)
