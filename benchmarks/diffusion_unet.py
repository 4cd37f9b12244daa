"""A small denoising U-Net: residual blocks with the time added, self- and cross-attention.

The structure is that of latent diffusion (Rombach et al., arXiv 2112.10752, section 3.3), the
sizes are ours. On the meta device it costs nothing.
"""

# mypy: allow-subclassing-any

import math

import torch
from torch import nn
from torch.nn import functional as f


class TimeEmbedding(nn.Module):
    """Sines and cosines of the step, then two layers: [batch] -> [batch, width]."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.size = size
        self.layers = nn.Sequential(nn.Linear(size, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, step: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        rates = torch.exp(torch.arange(half, device=step.device) * (-math.log(10_000.0) / half))
        angles = step[:, None].float() * rates[None]
        made: torch.Tensor = self.layers(torch.cat([angles.sin(), angles.cos()], dim=-1))
        return made


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around the time; a 1x1 where the channels change."""

    def __init__(self, channels: int, out: int, width: int) -> None:
        super().__init__()
        self.before = nn.GroupNorm(32, channels)
        self.first = nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(width, out)
        self.between = nn.GroupNorm(32, out)
        self.second = nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.first(f.silu(self.before(x)))
        h = h + self.time(f.silu(time))[:, :, None, None]
        made: torch.Tensor = self.skip(x) + self.second(f.silu(self.between(h)))
        return made


class Attention(nn.Module):
    """Attention of pixels to themselves, or to a text [batch, tokens, context]."""

    def __init__(self, channels: int, context: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(channels, channels, bias=False)
        self.key = nn.Linear(context, channels, bias=False)
        self.value = nn.Linear(context, channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.query(x), self.key(context), self.value(context))
        )
        mixed = f.scaled_dot_product_attention(q, k, v)
        made: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(-2))
        return made


class SpatialTransformer(nn.Module):
    """Self-attention, cross-attention and a gated layer on the pixels of an image."""

    def __init__(self, channels: int, context: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, channels)
        self.into = nn.Conv2d(channels, channels, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.own = Attention(channels, channels)
        self.cross = Attention(channels, context)
        self.wide = nn.Linear(channels, 8 * channels)
        self.narrow = nn.Linear(4 * channels, channels)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[-2:]
        h = self.into(self.norm(x)).flatten(2).transpose(1, 2)
        normed = self.norms[0](h)
        h = h + self.own(normed, normed)
        h = h + self.cross(self.norms[1](h), context)
        value, gate = self.wide(self.norms[2](h)).chunk(2, dim=-1)
        h = h + self.narrow(value * f.gelu(gate))
        made: torch.Tensor = x + self.out(h.transpose(1, 2).unflatten(2, (height, width)))
        return made


class Level(nn.Module):
    """A residual block and, where wanted, a transformer."""

    def __init__(self, channels: int, out: int, width: int, context: int, *, attends: bool):
        super().__init__()
        self.block = ResidualBlock(channels, out, width)
        self.attention = SpatialTransformer(out, context) if attends else None

    def forward(self, x: torch.Tensor, time: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        x = self.block(x, time)
        return x if self.attention is None else self.attention(x, context)


class DiffusionUnet(nn.Module):
    """Noise of latents [batch, 4, h, w] at a step [batch], told [batch, tokens, context]."""

    def __init__(
        self, channels: int = 128, multipliers: tuple[int, ...] = (1, 2, 4), context: int = 512
    ) -> None:
        super().__init__()
        width = 4 * channels
        sizes = [channels * m for m in multipliers]
        self.time = TimeEmbedding(channels, width)
        self.into = nn.Conv2d(4, channels, 3, padding=1)
        self.down = nn.ModuleList()
        self.shrink = nn.ModuleList()
        before = channels
        for i, size in enumerate(sizes):
            self.down.append(Level(before, size, width, context, attends=i > 0))
            self.shrink.append(nn.Conv2d(size, size, 3, stride=2, padding=1))
            before = size
        self.middle = Level(before, before, width, context, attends=True)
        self.up = nn.ModuleList()
        for i, size in reversed(list(enumerate(sizes))):
            self.up.append(Level(before + size, size, width, context, attends=i > 0))
            before = size
        self.out = nn.Sequential(
            nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, 4, 3, padding=1)
        )

    def forward(
        self, latents: torch.Tensor, step: torch.Tensor, text: torch.Tensor
    ) -> torch.Tensor:
        time = self.time(step)
        x = self.into(latents)
        kept = []
        for level, shrink in zip(self.down, self.shrink, strict=True):
            x = level(x, time, text)
            kept.append(x)
            x = shrink(x)
        x = self.middle(x, time, text)
        for level in self.up:
            x = f.interpolate(x, scale_factor=2.0, mode="nearest")
            x = level(torch.cat([x, kept.pop()], dim=1), time, text)
        made: torch.Tensor = self.out(x)
        return made
