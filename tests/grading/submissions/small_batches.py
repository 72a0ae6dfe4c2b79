"""A slimmer network on small batches of 20, with Adam and in the default layout. Lands: tier 2."""

import torch
from torch import nn

run = {}


def network(classes):
    layers, inputs = [], 1
    for outputs in (16, 32, 64):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(outputs), nn.ReLU()]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, classes))


def as_input(images):
    return torch.as_tensor(images).unsqueeze(1).float().div(255).sub(0.286).div(0.353)


def prepare(shape, classes):
    run["classes"] = classes


def train(images, labels, budget_s):
    torch.manual_seed(0)
    pixels, targets = as_input(images), torch.as_tensor(labels)
    model = run["model"] = network(run["classes"])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = 2 * -(-len(targets) // 20)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for _ in range(2):
        for chosen in torch.randperm(len(targets)).split(20):
            batch = pixels[chosen]
            batch[::2] = batch[::2].flip(3)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets[chosen]).backward()
            optimizer.step()
            schedule.step()


def predict(images):
    model = run["model"].eval()
    with torch.no_grad():
        return torch.cat([model(batch) for batch in as_input(images).split(500)]).numpy()
