"""Loaders as evaluation needs them: every row counts."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset


def with_all_rows(loader: DataLoader[Any]) -> DataLoader[Any]:
    """``loader`` with the last, smaller batch that ``drop_last=True`` leaves out, which is a setting for training.

    Args:
        loader: any loader; one over an iterable, or with a batch sampler of its own, is returned as it is.

    Returns:
        A loader of the same rows in batches of the same size.
    """
    sampler = loader.batch_sampler
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return loader
    if type(sampler) is not BatchSampler or not sampler.drop_last:
        return loader
    return DataLoader(
        loader.dataset,
        batch_sampler=BatchSampler(sampler.sampler, sampler.batch_size, drop_last=False),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
    )
