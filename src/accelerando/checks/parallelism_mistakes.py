"""The plausible mistakes of lab 7, question by question: each must lose its own question and no other."""

from accelerando.submission import WrongAnswer

RING_STEPS = (
    WrongAnswer(
        "the second half adds as well, so finished sums are added again",
        """
def ring_step(rank, step, world_size):
    send = (rank - step) % world_size
    return {"to": (rank + 1) % world_size, "send": send, "receive": (send - 1) % world_size, "adds": True}
""",
    ),
    WrongAnswer(
        "every rank always sends the piece with its own number",
        """
def ring_step(rank, step, world_size):
    return {
        "to": (rank + 1) % world_size,
        "send": rank,
        "receive": (rank - 1) % world_size,
        "adds": step < world_size - 1,
    }
""",
    ),
    WrongAnswer(
        "it expects the piece that it sends itself",
        """
def ring_step(rank, step, world_size):
    piece = (rank - step) % world_size
    return {"to": (rank + 1) % world_size, "send": piece, "receive": piece, "adds": step < world_size - 1}
""",
    ),
    WrongAnswer(
        "the second half begins with the rank's own piece and not with the one that is complete",
        """
def ring_step(rank, step, world_size):
    adds = step < world_size - 1
    send = (rank - (step if adds else step - (world_size - 1))) % world_size
    return {"to": (rank + 1) % world_size, "send": send, "receive": (send - 1) % world_size, "adds": adds}
""",
    ),
)

SHARES = (
    WrongAnswer(
        "as it was handed over: the same order in every epoch, and images that are judged twice",
        """
def share(n, rank, world_size, epoch, is_training):
    return list(DistributedSampler(range(n), num_replicas=world_size, rank=rank, shuffle=is_training))
""",
    ),
    WrongAnswer(
        "a new order in every epoch, and the evaluation is still padded",
        """
def share(n, rank, world_size, epoch, is_training):
    sampler = DistributedSampler(range(n), num_replicas=world_size, rank=rank, shuffle=is_training)
    sampler.set_epoch(epoch)
    return list(sampler)
""",
    ),
    WrongAnswer(
        "no padding, and so the last images are not judged at all",
        """
def share(n, rank, world_size, epoch, is_training):
    sampler = DistributedSampler(
        range(n), num_replicas=world_size, rank=rank, shuffle=is_training, drop_last=not is_training
    )
    sampler.set_epoch(epoch)
    return list(sampler)
""",
    ),
    WrongAnswer(
        "no padding in training either: one rank has a batch more, and waits for ever",
        """
def share(n, rank, world_size, epoch, is_training):
    order = torch.randperm(n, generator=torch.Generator().manual_seed(epoch)) if is_training else torch.arange(n)
    return order[rank::world_size].tolist()
""",
    ),
    WrongAnswer(
        "every rank shuffles for itself",
        """
def share(n, rank, world_size, epoch, is_training):
    if not is_training:
        return list(range(rank, n, world_size))
    order = torch.randperm(n, generator=torch.Generator().manual_seed(1000 * epoch + rank)).tolist()
    return order[: -(-n // world_size)]
""",
    ),
)

WEIGHTS = (
    WrongAnswer(
        "every batch of a rank counts the same",
        """
def loss_weights(images):
    return [[1 / len(own) if count else 0.0 for count in own] for own in images]
""",
    ),
    WrongAnswer(
        "that DDP divides by the number of ranks is forgotten",
        """
def loss_weights(images):
    total = sum(map(sum, images))
    return [[count / total for count in own] for own in images]
""",
    ),
    WrongAnswer(
        "each rank weighs by its own images only",
        """
def loss_weights(images):
    return [[count / max(1, sum(own)) for count in own] for own in images]
""",
    ),
    WrongAnswer(
        "the ranks without images are not counted, though DDP divides by them too",
        """
def loss_weights(images):
    total, busy = sum(map(sum, images)), sum(1 for own in images if sum(own))
    return [[count * busy / total for count in own] for own in images]
""",
    ),
)

STAGES = (
    WrongAnswer(
        "the exact copy of the weights is forgotten",
        """
def first_that_fits(parameters, world_size, activation_bytes, memory_bytes):
    n = world_size
    for stage, each in enumerate((12, 4 + 8 / n, 2 + 10 / n, 12 / n)):
        if parameters * each + activation_bytes <= memory_bytes:
            return stage
    return None
""",
    ),
    WrongAnswer(
        "the first stage is taken to deal out gradients as well",
        """
def first_that_fits(parameters, world_size, activation_bytes, memory_bytes):
    n = world_size
    for stage, each in enumerate((16, 2 + 14 / n, 2 + 14 / n, 16 / n)):
        if parameters * each + activation_bytes <= memory_bytes:
            return stage
    return None
""",
    ),
    WrongAnswer(
        "activations are divided by the ranks again",
        """
def first_that_fits(parameters, world_size, activation_bytes, memory_bytes):
    n = world_size
    for stage, each in enumerate((16, 4 + 12 / n, 2 + 14 / n, 16 / n)):
        if parameters * each + activation_bytes / (n if stage else 1) <= memory_bytes:
            return stage
    return None
""",
    ),
    WrongAnswer(
        "whatever needs least, not the first that fits",
        """
def first_that_fits(parameters, world_size, activation_bytes, memory_bytes):
    return 3 if parameters * 16 / world_size + activation_bytes <= memory_bytes else None
""",
    ),
)

TRAININGS = (
    WrongAnswer(
        "the inner module is called: nothing is ever sent",
        """
def train(ddp, steps, optimizer):
    for batches in steps:
        optimizer.zero_grad()
        for images, labels in batches:
            (nn.functional.cross_entropy(ddp.module(images), labels) / len(batches)).backward()
        optimizer.step()
""",
    ),
    WrongAnswer(
        "right, and a message after every batch",
        """
def train(ddp, steps, optimizer):
    for batches in steps:
        optimizer.zero_grad()
        for images, labels in batches:
            (nn.functional.cross_entropy(ddp(images), labels) / len(batches)).backward()
        optimizer.step()
""",
    ),
    WrongAnswer(
        "only backward stands inside no_sync: DDP decides in its forward, and sends every time",
        """
def train(ddp, steps, optimizer):
    for batches in steps:
        optimizer.zero_grad()
        for number, (images, labels) in enumerate(batches):
            loss = nn.functional.cross_entropy(ddp(images), labels) / len(batches)
            if number < len(batches) - 1:
                with ddp.no_sync():
                    loss.backward()
            else:
                loss.backward()
        optimizer.step()
""",
    ),
    WrongAnswer(
        "gradients are summed over the batches and never divided by their number",
        """
def train(ddp, steps, optimizer):
    for batches in steps:
        optimizer.zero_grad()
        with ddp.no_sync():
            for images, labels in batches[:-1]:
                nn.functional.cross_entropy(ddp(images), labels).backward()
        images, labels = batches[-1]
        nn.functional.cross_entropy(ddp(images), labels).backward()
        optimizer.step()
""",
    ),
    WrongAnswer(
        "gradients travel through files, which ranks on two machines do not share",
        """
def train(ddp, steps, optimizer):
    import os, tempfile
    place = f"{tempfile.gettempdir()}/gradients-{os.environ['MASTER_PORT']}"
    for batches in steps:
        optimizer.zero_grad()
        for images, labels in batches:
            (nn.functional.cross_entropy(ddp.module(images), labels) / len(batches)).backward()
        torch.save([parameter.grad for parameter in ddp.parameters()], f"{place}-{dist.get_rank()}")
        dist.barrier()
        for parameter, theirs in zip(ddp.parameters(), torch.load(f"{place}-{1 - dist.get_rank()}")):
            parameter.grad = (parameter.grad + theirs) / 2
        dist.barrier()
        os.remove(f"{place}-{dist.get_rank()}")
        optimizer.step()
""",
    ),
)

QUIZ = (
    WrongAnswer(
        "all the beliefs that the lesson breaks",
        """
quiz = {"noise": "a", "allreduce": "a", "small": "b", "inner": "a", "accumulate": "a", "uneven": "a",
        "padding": "a", "memory": "b"}
""",
    ),
    WrongAnswer(
        "one question left out",
        """
quiz = {"noise": "c"}
""",
    ),
)
