"""A slimmer network with BatchNorm, while every picture still goes through PIL by itself. Lands: tier 1."""

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

run = {}


class Garments(Dataset):
    def __init__(self, images, labels, steps):
        self.images, self.labels = images, labels
        self.transform = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(0.286, 0.353)])

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


def network(classes):
    layers, inputs = [], 1
    for outputs in (16, 32, 64):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]
        inputs = outputs
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, classes))


def prepare(shape, classes):
    run["classes"] = classes


def train(images, labels, budget_s):
    torch.manual_seed(0)
    steps = [transforms.RandomCrop(28, padding=1), transforms.RandomHorizontalFlip()]
    loader = DataLoader(Garments(images, labels, steps), batch_size=24, shuffle=True)
    model = run["model"] = network(run["classes"])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=2 * len(loader))
    for _ in range(2):
        for batch, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()
            schedule.step()


def predict(images):
    model = run["model"].eval()
    with torch.no_grad():
        loader = DataLoader(Garments(images, [0] * len(images), []), batch_size=500)
        return torch.cat([model(batch) for batch, _ in loader]).numpy()
