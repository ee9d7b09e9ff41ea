"""Experiments on variational auto-encoders and generative adversarial networks."""
