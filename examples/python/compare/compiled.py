"""`torch.compile(mode="reduce-overhead")`: trees of graphs, whose pools are checkpointed and restored. Compared with eager, step by
step; exit status 1 where they differ.

    python -m headwater.torch --status examples/python/compare/compiled.py
"""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).cuda()
    wrong = 0

    inference = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for step in range(12):
            x = torch.randn(32 if step % 3 else 64, 256, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            wrong += not torch.allclose(inference(x), model(x), rtol=1e-4, atol=1e-5)

    # Two compiled functions that follow each other in changing order: branches of a tree.
    one = torch.compile(lambda x: (x @ x.T).relu() + 1, mode="reduce-overhead")
    two = torch.compile(lambda x: x.sin().cumsum(0) * 2, mode="reduce-overhead")
    for step in range(12):
        x = torch.randn(128, 128, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        y = one(x).clone()
        z = (two(y) if step % 2 else one(y)).clone()
        expected = (x @ x.T).relu() + 1
        expected = expected.sin().cumsum(0) * 2 if step % 2 else (expected @ expected.T).relu() + 1
        wrong += not torch.allclose(z, expected, rtol=1e-3, atol=1e-2)

    training = torch.compile(model, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(32, 256, device="cuda")
        loss = (training(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    wrong += not losses[-1] < losses[0]
    print(f"backend {torch.cuda.get_allocator_backend()}; loss {losses[0]:.4f} -> {losses[-1]:.4f}; {wrong} wrong")
    sys.exit(int(wrong > 0))


if __name__ == "__main__":
    main()
