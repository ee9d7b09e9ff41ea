"""A style-based generator and its residual discriminator (Karras et al. 2019, 2020)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from credo._arguments import check_integer, check_number
from credo.architectures._base import Architecture, check_rows
from credo.architectures._equalized import (
    DiscriminatorHead,
    EqualizedConv2d,
    EqualizedLinear,
    Level,
    pixel_norm,
    resolution_levels,
    scaled_leaky_relu,
    shrink,
)
from credo.architectures.convolutional import image_shape
from credo.errors import InputError

_EPSILON = 1e-8
_MAPPING_RATE = 0.01
_MEAN_STYLE_DECAY = 0.995


class ModulatedConv2d(nn.Module):
    r"""A convolution whose weights are scaled per input channel by a style, and normalized per output channel.

        w'_{oik} = s_i · w_{oik},    w''_{oik} = w'_{oik} / √(Σ_{i,k} w'_{oik}² + ε)

    for kernel positions k, where s = A w + b is an affine function of the style w with b = 1 at first. Independent
    inputs of unit variance have outputs of unit variance. The scales are applied to the input and to the output of one
    convolution with the weights that all rows share, which is the same and needs no weights per row.

    Args:
        style: dimension of the style.
        in_channels: number of input channels.
        out_channels: number of output channels.
        kernel_size: of the convolution, odd; height and width are kept.
        demodulate: whether to normalize; without it weights are divided by √(in_channels · kernel_size²).

    References:
        T. Karras et al. Analyzing and improving the image quality of StyleGAN. CVPR 2020. arXiv:1912.04958,
        section 2.2.

    Example:
        >>> import torch
        >>> ModulatedConv2d(8, 3, 4)(torch.randn(2, 3, 5, 5), torch.randn(2, 8)).shape
        torch.Size([2, 4, 5, 5])
    """

    def __init__(
        self, style: int, in_channels: int, out_channels: int, kernel_size: int = 3, *, demodulate: bool = True
    ) -> None:
        super().__init__()
        self.affine = EqualizedLinear(style, in_channels, initial_bias=1.0)
        self.weight = nn.Parameter(torch.empty(out_channels, in_channels, kernel_size, kernel_size))
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.demodulate = demodulate
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial weights."""
        nn.init.normal_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """Convolve without the bias.

        Args:
            x: features ``[B, in_channels, H, W]``.
            w: styles ``[B, style]``.

        Returns:
            Features ``[B, out_channels, H, W]``.
        """
        weight = self.weight / math.sqrt(self.weight[0].numel())  # of unit fan-in, which keeps ε small beside it
        scale = self.affine(w)
        h = F.conv2d(x * scale[:, :, None, None], weight, padding=weight.shape[-1] // 2)
        if not self.demodulate:
            return h
        norm = (scale.square() @ weight.square().sum((2, 3)).mT + _EPSILON).rsqrt()
        demodulated: Tensor = h * norm[:, :, None, None]
        return demodulated


class StyledConv(nn.Module):
    """A modulated convolution, plus noise of a learned strength at every pixel, plus bias, and a leaky ReLU.

    In evaluation mode the noise is always the same, so that an image is a function of its styles.
    """

    noise: Tensor

    def __init__(self, style: int, in_channels: int, level: Level, *, enlarges: bool) -> None:
        super().__init__()
        self.conv = ModulatedConv2d(style, in_channels, level.channels)
        self.enlarges = enlarges
        self.strength = nn.Parameter(torch.empty(()))
        self.register_buffer("noise", torch.randn(1, 1, level.height, level.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the strength of the noise to 0."""
        nn.init.zeros_(self.strength)

    def forward(self, x: Tensor, w: Tensor) -> Tensor:
        """Map ``[B, in_channels, h, w]`` and styles ``[B, style]`` to ``[B, channels, height, width]``."""
        h = self.conv(double(x) if self.enlarges else x, w)
        noise = torch.randn_like(h[:, :1]) if self.training else self.noise
        return scaled_leaky_relu(h + self.strength * noise + self.conv.bias[:, None, None])


class ConstantInput(nn.Module):
    """A learned feature map, the same for all rows."""

    def __init__(self, level: Level) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.empty(level))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        nn.init.normal_(self.values)

    def forward(self, n: int) -> Tensor:
        """The feature map of ``n`` rows, ``[n, C, H, W]``."""
        return self.values.expand(n, *self.values.shape)


class StyleGenerator(Architecture):
    r"""A generator that maps noise to a style w, and controls every layer by it.

        w = f(z / rms(z)),    image = Σ_levels enlarged RGB_l,    layers modulated by w

    Maps ``[B, latent]`` to ``[B, C, H, W]``, of unbounded values: data between −1 and 1 are near the outputs of the
    untrained network. A *mapping network* f of fully connected layers, whose learning rate is a hundredth of the
    others', maps noise to styles. The image begins as a learned constant of 4×4 pixels or a little more; at each
    resolution there are two :class:`ModulatedConv2d` with noise per pixel, and the images of all resolutions are added
    (output skips). There are two styles per resolution, from coarse to fine:

    - ``styles`` are what the layers take, ``[B, layers, latent]``; ``synthesize`` maps them to images;
    - ``mix`` takes the first of them from one image and the others from another (*style mixing*). In training a share
      ``mixing`` of the images is mixed from two noises at a random layer, so that styles of layers become independent;
    - ``truncation`` ψ draws styles to their mean, w̄ + ψ·(w − w̄): fewer bad samples, and less diverse ones. w̄ is an
      exponential moving average over training.

    The path-length regularization of the paper is left out.

    Args:
        latent: dimension of the noise and of the styles.
        shape: of an image, (C, H, W), with even H and W of at least 8.
        width: channels at the full resolution; twice as many at each lower one, at most 512.
        mapping: number of layers of the mapping network; 8 in the papers, 2 in Karras et al. (2020b) for small images.
            An untrained deep one maps all noise to similar styles, which takes long training to undo.
        mixing: probability of mixing the styles of a training image.

    Attributes:
        layers: the number of styles of an image.
        mean_style: w̄, ``[latent]``.

    Raises:
        InputError: an argument has a wrong type or value.

    References:
        T. Karras, S. Laine, T. Aila. A style-based generator architecture for generative adversarial networks. CVPR
        2019. arXiv:1812.04948.
        T. Karras et al. Analyzing and improving the image quality of StyleGAN. CVPR 2020. arXiv:1912.04958.
        T. Karras et al. Training generative adversarial networks with limited data. NeurIPS 2020. arXiv:2006.06676.

    Example:
        >>> import torch
        >>> net = StyleGenerator(16, (1, 32, 32), width=8).eval()
        >>> coarse, fine = net.styles(torch.randn(2, 16))[:, None]
        >>> net.synthesize(net.mix(coarse, fine, 4)).shape, net.layers
        (torch.Size([1, 1, 32, 32]), 8)
    """

    mean_style: Tensor

    def __init__(
        self,
        latent: int = 64,
        shape: Sequence[int] = (1, 32, 32),
        width: int = 32,
        mapping: int = 2,
        mixing: float = 0.9,
    ) -> None:
        levels, image = resolution_levels(shape, width), image_shape(shape)
        latent, mapping = check_integer(latent, "latent", 1), check_integer(mapping, "mapping", 1)
        if not 0.0 <= check_number(mixing, "mixing") <= 1.0:
            raise InputError(f"mixing must be a probability from 0 to 1, got {mixing}")
        super().__init__(latent=latent, shape=image, width=width, mapping=mapping, mixing=mixing)
        self.layers, self.mixing = 2 * len(levels), mixing
        self.mapping = nn.ModuleList(EqualizedLinear(latent, latent, rate=_MAPPING_RATE) for _ in range(mapping))
        self.constant = ConstantInput(levels[0])
        convs = [StyledConv(latent, levels[0].channels, levels[0], enlarges=False)]
        for before, level in pairwise(levels):
            convs.append(StyledConv(latent, before.channels, level, enlarges=True))
            convs.append(StyledConv(latent, level.channels, level, enlarges=False))
        self.convs = nn.ModuleList(convs)
        self.to_image = nn.ModuleList(
            ModulatedConv2d(latent, level.channels, image[0], 1, demodulate=False) for level in levels
        )
        self.register_buffer("mean_style", torch.zeros(latent))

    def forward(self, z: Tensor, *, truncation: float = 1.0) -> Tensor:
        """Generate images.

        Args:
            z: noise ``[B, latent]``.
            truncation: ψ; 0 is the image of the mean style for every z, 1 leaves styles as they are.

        Returns:
            Images ``[B, C, H, W]``.
        """
        w = self.styles(z, truncation=truncation)
        if self.training and self.mixing > 0.0:
            other = self.styles(torch.randn_like(z), truncation=truncation)
            layer = torch.randint(1, self.layers, (len(z),), device=z.device)
            is_mixed = torch.rand(len(z), device=z.device) < self.mixing
            w = self.mix(w, other, layer.masked_fill(~is_mixed, self.layers))
        return self.synthesize(w)

    def styles(self, z: Tensor, *, truncation: float = 1.0) -> Tensor:
        """The styles of noise, the same for every layer; in training mode their mean is updated.

        Args:
            z: noise ``[B, latent]``.
            truncation: ψ.

        Returns:
            Styles ``[B, layers, latent]``.

        Raises:
            InputError: if the noise has another size.
        """
        check_rows(z, (self.config["latent"],), "noise")
        w = pixel_norm(z)
        for layer in self.mapping:
            w = scaled_leaky_relu(layer(w))
        if self.training:
            self.mean_style.lerp_(w.detach().mean(0).to(self.mean_style.dtype), 1.0 - _MEAN_STYLE_DECAY)
        if check_number(truncation, "truncation") != 1.0:
            w = torch.lerp(self.mean_style.to(w.dtype), w, truncation)
        return w[:, None].expand(-1, self.layers, -1)

    def mix(self, coarse: Tensor, fine: Tensor, layer: int | Tensor) -> Tensor:
        """Style mixing: the styles before ``layer`` from ``coarse``, the others from ``fine``.

        Args:
            coarse: styles ``[B, layers, latent]``.
            fine: styles ``[B, layers, latent]``.
            layer: from 0, all of ``fine``, to ``layers``, all of ``coarse``; a tensor ``[B]`` for one per row.

        Returns:
            Styles ``[B, layers, latent]``.

        Raises:
            InputError: if the shape of the styles does not match, or there is no such layer.
        """
        for name, styles in (("coarse", coarse), ("fine", fine)):
            check_rows(styles, (self.layers, self.config["latent"]), f"{name} styles")
        if len(coarse) != len(fine):
            raise InputError(f"coarse and fine must have the same number of rows, got {len(coarse)} and {len(fine)}")
        index = torch.arange(self.layers, device=coarse.device)
        if isinstance(layer, Tensor):
            if layer.shape != coarse.shape[:1] or layer.is_floating_point():
                raise InputError(f"layer must be integers [{len(coarse)}], got {layer.dtype} of {list(layer.shape)}")
            first = index < layer[:, None]
        else:
            if check_integer(layer, "layer", 0) > self.layers:
                raise InputError(f"layer must be from 0 to the number of layers, {self.layers}, got {layer}")
            first = index < layer
        return torch.where(first[..., None], coarse, fine)

    def synthesize(self, w: Tensor) -> Tensor:
        """Generate images from styles.

        Args:
            w: styles ``[B, layers, latent]``.

        Returns:
            Images ``[B, C, H, W]``.

        Raises:
            InputError: if the shape of the styles does not match.
        """
        check_rows(w, (self.layers, self.config["latent"]), "styles")
        h = self.convs[0](self.constant(len(w)), w[:, 0])
        image = self._image(0, h, w[:, 1])
        for level in range(1, len(self.to_image)):
            h = self.convs[2 * level - 1](h, w[:, 2 * level - 1])
            h = self.convs[2 * level](h, w[:, 2 * level])
            image = double(image) + self._image(level, h, w[:, 2 * level + 1])
        return image

    def _image(self, level: int, h: Tensor, w: Tensor) -> Tensor:
        to_image = self.to_image[level]
        image: Tensor = to_image(h, w) + to_image.bias[:, None, None]  # type: ignore[index]
        return image


class StyleDiscriminator(Architecture):
    """The discriminator of the second paper, from images to one logit or score per row.

    Maps ``[B, C, H, W]`` to ``[B]``: residual blocks of two convolutions that halve the size, then the standard
    deviation over the minibatch and fully connected layers, all with equalized learning rates.

    Args:
        shape: of an image, (C, H, W), with even H and W of at least 8.
        width: channels at the full resolution; twice as many at each lower one, at most 512.

    Raises:
        InputError: an argument has a wrong type or value.

    Example:
        >>> import torch
        >>> StyleDiscriminator((1, 32, 32), width=8)(torch.zeros(5, 1, 32, 32)).shape
        torch.Size([5])
    """

    def __init__(self, shape: Sequence[int] = (1, 32, 32), width: int = 32) -> None:
        levels = resolution_levels(shape, width)
        super().__init__(shape=image_shape(shape), width=width)
        self.shape = image_shape(shape)
        self.from_image = EqualizedConv2d(self.shape[0], width, 1)
        self.blocks = nn.Sequential(
            *(HalvingBlock(before.channels, after.channels) for before, after in pairwise(levels[::-1]))
        )
        self.head = DiscriminatorHead(levels[0])

    def forward(self, x: Tensor) -> Tensor:
        """Score images.

        Args:
            x: images ``[B, C, H, W]``.

        Returns:
            Logits or scores ``[B]``.

        Raises:
            InputError: if the shape of the images does not match.
        """
        check_rows(x, self.shape)
        scores: Tensor = self.head(self.blocks(scaled_leaky_relu(self.from_image(x))))
        return scores


class HalvingBlock(nn.Module):
    """Two convolutions and a shortcut, averaged over 2 × 2 pixels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = EqualizedConv2d(in_channels, in_channels)
        self.second = EqualizedConv2d(in_channels, out_channels)
        self.shortcut = EqualizedConv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, in_channels, H, W]`` to ``[B, out_channels, H/2, W/2]``."""
        h = shrink(scaled_leaky_relu(self.second(scaled_leaky_relu(self.first(x)))))
        shortcut: Tensor = self.shortcut(shrink(x))
        return (h + shortcut) / math.sqrt(2.0)


def double(x: Tensor) -> Tensor:
    """Twice the height and width by bilinear interpolation."""
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
