# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix products that round alike for any number of rows."""

from .series import OverlayError


def row_invariant() -> str:
    """Set torch so that a row of a bfloat16 product does not depend on how many there are.

    Sequence parallelism gives a rank fewer rows than one GPU has. cuBLAS may then split the sum
    (split-K) and round differently; cuBLASLt without split-K was not seen to. Call it before the
    first product.

    Returns:
        What was set, for a log.

    Raises:
        OverlayError: torch is older than 2.10, or has no cuBLASLt.
    """
    import torch

    version = torch.__version__
    try:
        if tuple(int(part) for part in version.split(".")[:2]) < (2, 10):
            raise RuntimeError("split-K cannot be forbidden there")
        torch.backends.cuda.preferred_blas_library("cublaslt")
        # Neither a sum in bfloat16 nor one in parts.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    except (RuntimeError, TypeError) as error:
        raise OverlayError(
            f"row-invariant products need torch 2.10 or newer with cuBLASLt; this is {version} "
            f"({error})"
        ) from None
    return f"row-invariant products: cuBLASLt without split-K, torch {version}"
