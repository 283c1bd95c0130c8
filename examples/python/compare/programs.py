"""The programs that are compared: small, whole PyTorch programs, in plain torch. Each yields one number or hash a step.

They are what users run: sizes change from step to step, side streams, graphs, caches that grow. Every random number comes from a
seed, so that two runs do the same work.
"""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    def __init__(self, width, heads, kv_heads=None, rotary=False):
        super().__init__()
        self.heads, self.kv_heads, self.rotary = heads, kv_heads or heads, rotary
        self.size = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.value = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        split = lambda y, heads: y.view(batch, length, heads, self.size).transpose(1, 2)  # noqa: E731
        query, key, value = split(self.query(x), self.heads), split(self.key(x), self.kv_heads), split(self.value(x), self.kv_heads)
        start = cache[0].shape[2] if cache else 0
        if self.rotary:
            query, key = rotate(query, start), rotate(key, start)
        if cache is not None:
            if cache:
                key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
            cache[:] = [key, value]
        repeat = self.heads // self.kv_heads
        if repeat > 1:
            key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=length > 1)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def rotate(x, start):
    length, size = x.shape[2], x.shape[3]
    angle = torch.outer(
        torch.arange(start, start + length, device=x.device, dtype=torch.float32),
        torch.exp(torch.arange(0, size, 2, device=x.device) * (-math.log(10000.0) / size)),
    )
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    one, two = x[..., 0::2], x[..., 1::2]
    return torch.stack([one * cosine - two * sine, one * sine + two * cosine], -1).flatten(-2)


class GptLayer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        return x + self.mlp(self.norm2(x))


class LlamaLayer(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, kv_heads, rotary=True)
        self.gate, self.up = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x, cache=None):
        x = x + self.attention(self.norm1(x), cache)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, layers, vocabulary, width, positions=None, checkpointed=False):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width) if positions else None
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.checkpointed = checkpointed

    def forward(self, tokens, caches=None):
        x = self.embedding(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for number, layer in enumerate(self.layers):
            if self.checkpointed:
                x = checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x, caches[number] if caches is not None else None)
        return self.head(self.norm(x))


def train_decoder(model, vocabulary, steps, lengths, tokens_a_step):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    sizes = random.Random(1)
    for _ in range(steps):
        length = sizes.choice(lengths)
        batch = max(1, tokens_a_step // length)
        tokens = torch.randint(0, vocabulary, (batch, length + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss


def gpt2_varlen(steps=30):
    model = Decoder([GptLayer(768, 12) for _ in range(12)], 32000, 768, positions=1024).cuda()
    yield from train_decoder(model, 32000, steps, [128, 200, 333, 512, 640, 777, 900, 1024], 8192)


def llama_varlen(steps=30):
    model = Decoder([LlamaLayer(1024, 16, 4) for _ in range(10)], 32000, 1024, checkpointed=True).cuda()
    yield from train_decoder(model, 32000, steps, [256, 411, 512, 768, 1000, 1536, 2048], 12288)


class Bottleneck(nn.Module):
    def __init__(self, entry, middle, stride):
        super().__init__()
        out = 4 * middle
        self.body = nn.Sequential(
            nn.Conv2d(entry, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
            nn.Conv2d(middle, middle, 3, stride, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU(inplace=True),
            nn.Conv2d(middle, out, 1, bias=False), nn.BatchNorm2d(out),
        )
        self.short = None
        if stride != 1 or entry != out:
            self.short = nn.Sequential(nn.Conv2d(entry, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        return F.relu(self.body(x) + (x if self.short is None else self.short(x)))


def resnet50():
    parts = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    entry = 64
    for middle, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            parts.append(Bottleneck(entry, middle, stride if block == 0 else 1))
            entry = 4 * middle
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def resnet_multiscale(steps=25):
    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    sizes = random.Random(2)
    for _ in range(steps):
        size = sizes.choice([128, 160, 192, 224, 256, 288])
        images = torch.randn(32, 3, size, size, device="cuda")
        labels = torch.randint(0, 1000, (32,), device="cuda")
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss


class Experts(nn.Module):
    def __init__(self, width, count, chosen=2):
        super().__init__()
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )
        self.chosen = chosen

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        weights, picks = self.router(flat).softmax(-1).topk(self.chosen, -1)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            # How many tokens an expert gets changes with every step: so do all sizes below.
            rows, places = (picks == number).nonzero(as_tuple=True)
            if rows.numel():
                part = expert(flat[rows]) * weights[rows, places].unsqueeze(1)
                result = result.index_put((rows,), part.to(result.dtype), accumulate=True)
        return result.view_as(x)


def mixture_of_experts(steps=25):
    width = 768
    embedding = nn.Embedding(16000, width).cuda()
    layers = nn.ModuleList(Experts(width, 8) for _ in range(4)).cuda()
    head = nn.Linear(width, 16000, bias=False).cuda()
    parameters = [*embedding.parameters(), *layers.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    sizes = random.Random(3)
    for _ in range(steps):
        length = sizes.choice([256, 384, 500, 640, 1024])
        tokens = torch.randint(0, 16000, (8, length + 1), device="cuda")
        x = embedding(tokens[:, :-1])
        for layer in layers:
            x = x + layer(x)
        loss = F.cross_entropy(head(x).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss


@torch.no_grad()
def generation(steps=6):
    model = Decoder([LlamaLayer(1024, 16, 16) for _ in range(12)], 16000, 1024).cuda().bfloat16().eval()
    sizes = random.Random(4)
    for _ in range(steps):
        batch, prompt, new = sizes.choice([4, 8, 16]), sizes.choice([64, 200, 333]), sizes.choice([48, 64, 96])
        tokens = torch.randint(0, 16000, (batch, prompt), device="cuda")
        caches = [[] for _ in model.layers]
        said = tokens
        for _ in range(new):
            # The cache is made anew, one token longer, at every step.
            tokens = model(tokens, caches)[:, -1:].float().argmax(-1)
            said = torch.cat([said, tokens], 1)
        yield said.sum()


def fsdp_streams(steps=12):
    """What fully sharded training does to an allocator: each layer's weights are gathered on a side stream just before they are used,
    and freed just after, in the forward and again in the backward pass."""
    width, depth = 2048, 10
    shards = [torch.randn(4 * width * width, device="cuda").mul_(0.02).bfloat16() for _ in range(depth)]
    gathering = torch.cuda.Stream()
    sizes = random.Random(5)

    def gather(number):
        with torch.cuda.stream(gathering):
            whole = torch.empty(4 * width * width, dtype=torch.bfloat16, device="cuda")
            whole.copy_(shards[number])
        return whole

    for _ in range(steps):
        rows = sizes.choice([1024, 2048, 3000, 4096])
        x = torch.randn(rows, width, device="cuda", dtype=torch.bfloat16)
        kept, ahead = [], gather(0)
        for number in range(depth):
            whole = ahead
            torch.cuda.current_stream().wait_stream(gathering)
            if number + 1 < depth:
                ahead = gather(number + 1)
            whole.record_stream(torch.cuda.current_stream())
            up, down = whole[: 2 * width * width].view(2 * width, width), whole[2 * width * width :].view(width, 2 * width)
            kept.append(x)
            x = x + F.gelu(x @ up.T) @ down.T
            del whole, up, down
        gradient = x / rows
        for number in reversed(range(depth)):
            whole = gather(number)
            torch.cuda.current_stream().wait_stream(gathering)
            whole.record_stream(torch.cuda.current_stream())
            up, down = whole[: 2 * width * width].view(2 * width, width), whole[2 * width * width :].view(width, 2 * width)
            inner = (gradient @ down) * torch.sigmoid(kept[number] @ up.T)
            weight = inner.T @ kept.pop()
            gradient = gradient + inner @ up
            shards[number][: weight.numel()].add_(weight.flatten(), alpha=-1e-4)
            del whole, up, down, weight, inner
        yield gradient.float().abs().mean()


def two_graphs(steps=30):
    """Two captured graphs of different sizes that share a pool and take turns, beside ordinary work."""
    model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))]).cuda().eval()
    inputs = [torch.zeros(rows, 1024, device="cuda") for rows in (512, 4096)]
    with torch.no_grad():
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            for x in inputs:
                for _ in range(3):
                    model(x)
        torch.cuda.current_stream().wait_stream(warm)
        pool, graphs, outputs = torch.cuda.graph_pool_handle(), [], []
        for x in inputs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                # A sum: the outputs of graphs that share a pool are read before the other one runs.
                outputs.append(model(x).square().sum())
            graphs.append(graph)
        for step in range(steps):
            which = step % 2
            inputs[which].normal_()
            graphs[which].replay()
            answer = outputs[which].clone()
            torch.empty(64 << 20, dtype=torch.uint8, device="cuda").fill_(step)
            yield answer


PROGRAMS = {
    program.__name__: program
    for program in (gpt2_varlen, llama_varlen, resnet_multiscale, mixture_of_experts, generation, fsdp_streams, two_graphs)
}
