"""Models of data alone: the same sentence with latent variables in place of weights."""

from credo.generative import evaluation
from credo.generative.autoencoder import AutoEncoder
from credo.generative.base import GenerativeModel
from credo.generative.dcgan import DCGAN
from credo.generative.gan import GAN
from credo.generative.infogan import CodePosterior, Codes, InfoGAN
from credo.generative.vae import VAE
from credo.generative.vqvae import VQVAE
from credo.generative.wgan import WGAN

__all__ = [
    "AutoEncoder",
    "CodePosterior",
    "Codes",
    "DCGAN",
    "GAN",
    "GenerativeModel",
    "InfoGAN",
    "VAE",
    "VQVAE",
    "WGAN",
    "evaluation",
]
