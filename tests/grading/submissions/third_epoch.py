"""The starter with its transforms on whole batches, and a third epoch for the time won. Lands: no tier."""

import torch
from torch import nn

run = {}


def network(classes):
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, classes),
    )  # fmt: skip


def as_input(images):
    return torch.as_tensor(images).unsqueeze(1).float().div(255).sub(0.286).div(0.353)


def prepare(shape, classes):
    run["classes"] = classes


def train(images, labels, budget_s):
    torch.manual_seed(0)
    pixels, targets = as_input(images), torch.as_tensor(labels)
    model = run["model"] = network(run["classes"])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False)
    for _ in range(3):
        for chosen in torch.randperm(len(targets)).split(32):
            batch = nn.functional.pad(pixels[chosen], (2, 2, 2, 2), value=-0.81)
            down, right = torch.randint(5, (2,)).tolist()
            batch = batch[:, :, down : down + 28, right : right + 28]
            batch = batch.flip(3) if torch.rand(()) < 0.5 else batch
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets[chosen]).backward()
            optimizer.step()


def predict(images):
    model = run["model"].eval()
    with torch.no_grad():
        return torch.cat([model(batch) for batch in as_input(images).split(32)]).numpy()
