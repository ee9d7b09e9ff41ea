"""What is believed of a target before it is seen: the posterior predictive distribution."""

from credo.predictive.base import Interval, Predictive

__all__ = ["Interval", "Predictive"]
