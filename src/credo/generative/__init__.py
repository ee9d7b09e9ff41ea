"""Generative models: auto-encoders with latent variables, adversarial networks, and the evaluation of their samples."""

from credo.generative import evaluation
from credo.generative.autoencoder import AutoEncoder
from credo.generative.base import GenerativeModel
from credo.generative.gan import DCGAN, GAN
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
