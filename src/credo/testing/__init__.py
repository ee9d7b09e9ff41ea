"""Conformance checks for your own methods and posteriors: functions to call from your tests.

    from credo.testing import check_method, check_posterior

    def test_my_method():
        check_method(lambda net: MyMethod(net, credo.Gaussian(0.1)))

All methods and posteriors of credo pass them. ``simulation_based_calibration`` checks exact posteriors by simulation.
"""

from credo.testing.calibration import Ranks, simulation_based_calibration
from credo.testing.method import check_method
from credo.testing.posterior import check_posterior

__all__ = ["Ranks", "check_method", "check_posterior", "simulation_based_calibration"]
