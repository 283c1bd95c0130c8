"""A thousand training steps with changing sizes: no leak, no drift. Exit status 1 where there is one.

    python -m headwater.torch examples/python/compare/thousand_steps.py

Live memory at the same point of the loop must be the same to the byte after every hundred steps, and what is reserved must stop
growing once every size has come by.
"""

import gc
import random
import sys

import torch
from torch import nn

SIZES = [64, 96, 128, 200, 256, 320, 384, 512]


def main(steps=1000, every=100):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    sizes = random.Random(0)
    live, reserved = [], []
    for step in range(1, steps + 1):
        x = torch.randn(sizes.choice(SIZES) * 16, 512, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            noise = torch.randn_like(x) * 0.1
        torch.cuda.current_stream().wait_stream(side)
        noise.record_stream(torch.cuda.current_stream())
        x.record_stream(side)
        loss = (model(x + noise) - x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % every == 0:
            value = loss.item()
            del x, noise, loss
            gc.collect()
            optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            live.append(torch.cuda.memory_allocated())
            reserved.append(torch.cuda.memory_reserved())
            print(f"step {step}: loss {value:.5f}, live {live[-1]:,}, reserved {reserved[-1]:,}", flush=True)
    leaked = len(set(live)) != 1
    drifted = reserved[-1] > reserved[len(reserved) // 2]
    print("leak" if leaked else "no leak", "drift" if drifted else "no drift")
    sys.exit(int(leaked or drifted))


if __name__ == "__main__":
    main()
