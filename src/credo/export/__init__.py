"""Models as ONNX graphs: draws, likelihood, calibration and, for tables, the preprocessing in one file."""

from credo.export.networks import export_network
from credo.export.tables import column_inputs, export_table

__all__ = ["column_inputs", "export_network", "export_table"]
