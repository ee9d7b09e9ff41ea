"""credo inside other libraries: MLflow, skpro, Dask and Ray, each an extra that is imported when it is used.

They are reached by their names, ``credo.mlflow``, ``credo.skpro``, ``credo.dask`` and ``credo.ray``.
"""
