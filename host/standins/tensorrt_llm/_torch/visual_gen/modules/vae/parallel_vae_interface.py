# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the VAE over several ranks: rank 0 decodes alone here."""


class ParallelVAEFactory:
    """Knows no VAE."""

    @staticmethod
    def supports(vae_class: type) -> bool:
        """Return False."""
        return False
