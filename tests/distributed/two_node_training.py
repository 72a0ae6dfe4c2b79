"""What the launchers start in the cluster's tests: a tiny data-parallel training whose final loss is printed."""

import socket
import sys

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Five steps; every rank has its own data, so the loss is only right if gradients are averaged."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(100 + rank)
    images, targets = torch.randn(32, 8, generator=data), torch.randn(32, 1, generator=data)
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(images), targets)
        loss.backward()
        optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    sys.stdout.write(f"{socket.gethostname()} rank {rank} of {ranks}: final loss {total.item() / ranks:.9f}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
