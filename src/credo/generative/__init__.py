"""Models of data alone: the same sentence with latent variables in place of weights."""

from credo.generative.base import GenerativeModel
from credo.generative.gan import GAN
from credo.generative.vae import VAE

__all__ = ["GAN", "VAE", "GenerativeModel"]
