# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""The parallel layout: which ranks share the guidance batch, the weights and the sequence."""

import itertools

import torch.distributed as dist

from tensorrt_llm._torch.device_mesh import build_mesh
from tensorrt_llm.mapping import Mapping

AXES = ("cfg", "tp", "cp_row", "cp_col", "ulysses")


class VisualGenMapping:
    """A rank's place in the mesh cfg - tp - cp - ulysses, the last axis varying fastest.

    Context parallelism (cp) is a ring, or an Attention2D mesh of rows and columns with
    ``cp_rank = cp_row_rank * attn2d_col_size + cp_col_rank``. A ring lies along the column axis.
    The sequence is cut over cp and ulysses together: ``seq_rank = cp_rank * ulysses_size +
    ulysses_rank``.

    Process groups are made when torch.distributed is initialised, which is a collective; without
    it the sizes and ranks can be read and the groups cannot.
    """

    def __init__(
        self,
        world_size: int = 1,
        rank: int = 0,
        cfg_size: int = 1,
        tp_size: int = 1,
        ring_size: int = 1,
        ulysses_size: int = 1,
        attn2d_row_size: int = 1,
        attn2d_col_size: int = 1,
        parallel_vae_size: int = 1,
    ) -> None:
        """Check the sizes and make the process groups.

        Args:
            world_size: processes in all.
            rank: this process.
            cfg_size: guidance branches that run at the same time.
            tp_size: ranks that share the weights.
            ring_size: ranks that pass K/V around; excludes Attention2D.
            ulysses_size: ranks that trade sequence for heads.
            attn2d_row_size: rows of the Attention2D mesh.
            attn2d_col_size: columns of the Attention2D mesh.
            parallel_vae_size: ranks that share the VAE, of which the host has none: kept only.

        Raises:
            ValueError: a size below 1, a rank outside the world, ring with Attention2D, or sizes
                whose product is not ``world_size``. Raised before any collective.
        """
        sizes = {
            "cfg_size": cfg_size,
            "tp_size": tp_size,
            "ring_size": ring_size,
            "attn2d_row_size": attn2d_row_size,
            "attn2d_col_size": attn2d_col_size,
            "ulysses_size": ulysses_size,
        }
        text = ", ".join(f"{name}={size}" for name, size in sizes.items())
        product = 1
        for name, size in sizes.items():
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name}={size!r}; expected a whole number of at least 1")
            product *= size
        if ring_size > 1 and attn2d_row_size * attn2d_col_size > 1:
            raise ValueError(
                f"ring_size={ring_size} with an Attention2D mesh of {attn2d_row_size} x "
                f"{attn2d_col_size}: they exclude each other; set one of them to 1"
            )
        if product != world_size:
            raise ValueError(
                f"{text} multiply to {product}, but there are {world_size} processes; choose sizes "
                f"whose product is {world_size}"
            )
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} lies outside a world of {world_size} processes")
        self.world_size = world_size
        self.rank = rank
        self.cfg_size = cfg_size
        self.tp_size = tp_size
        self.ring_size = ring_size
        self.ulysses_size = ulysses_size
        self.attn2d_row_size = attn2d_row_size
        self.attn2d_col_size = attn2d_col_size
        self.parallel_vae_size = parallel_vae_size
        self._shape = (
            cfg_size,
            tp_size,
            attn2d_row_size,
            ring_size * attn2d_col_size,
            ulysses_size,
        )
        places = itertools.product(*(range(n) for n in self._shape))
        self._place = dict(zip(AXES, next(itertools.islice(places, rank, None))))
        self._mesh = None
        self._joint: dict[str, dist.ProcessGroup] = {}
        if dist.is_initialized() and world_size > 1:
            self._mesh = build_mesh(self._shape, AXES)
            # Flattening makes a group, which is collective: do it here, on every rank alike.
            for name, axes in (("cp", AXES[2:4]), ("seq", AXES[2:])):
                self._joint[name] = self._mesh[axes]._flatten(name).get_group()

    def _group(self, axis: str) -> dist.ProcessGroup | None:
        if self.world_size == 1:
            return None
        if self._mesh is None:
            raise RuntimeError(
                f"there is no {axis} group: initialise torch.distributed before making a mapping"
            )
        return self._joint[axis] if axis in self._joint else self._mesh[axis].get_group()

    @property
    def cfg_rank(self) -> int:
        """Which guidance branch this rank computes."""
        return self._place["cfg"]

    @property
    def tp_rank(self) -> int:
        """Place in the tensor-parallel group."""
        return self._place["tp"]

    @property
    def cp_size(self) -> int:
        """Ring size, or rows times columns of the Attention2D mesh."""
        return self._shape[2] * self._shape[3]

    @property
    def cp_row_rank(self) -> int:
        """Row of the Attention2D mesh in which this rank stands."""
        return self._place["cp_row"]

    @property
    def cp_col_rank(self) -> int:
        """Column of the Attention2D mesh, or place in the ring."""
        return self._place["cp_col"]

    @property
    def cp_rank(self) -> int:
        """Place in the context-parallel group, rows outer."""
        return self.cp_row_rank * self._shape[3] + self.cp_col_rank

    @property
    def ulysses_rank(self) -> int:
        """Place in the Ulysses group: which block of heads this rank attends with."""
        return self._place["ulysses"]

    @property
    def seq_size(self) -> int:
        """Ranks over which the sequence is cut."""
        return self.cp_size * self.ulysses_size

    @property
    def seq_rank(self) -> int:
        """Which block of the sequence this rank holds."""
        return self.cp_rank * self.ulysses_size + self.ulysses_rank

    @property
    def cfg_group(self) -> dist.ProcessGroup | None:
        """Ranks that differ in the guidance branch only."""
        return self._group("cfg")

    @property
    def tp_group_pg(self) -> dist.ProcessGroup | None:
        """Ranks that share the weights."""
        return self._group("tp")

    @property
    def cp_group(self) -> dist.ProcessGroup | None:
        """Ranks of the ring or of the whole Attention2D mesh, in ``cp_rank`` order."""
        return self._group("cp")

    @property
    def ring_group(self) -> dist.ProcessGroup | None:
        """Ranks of the ring."""
        return self._group("cp_col")

    @property
    def attn2d_row_group(self) -> dist.ProcessGroup | None:
        """Ranks of this rank's row: they differ in the column."""
        return self._group("cp_col")

    @property
    def attn2d_col_group(self) -> dist.ProcessGroup | None:
        """Ranks of this rank's column: they differ in the row."""
        return self._group("cp_row")

    @property
    def ulysses_group(self) -> dist.ProcessGroup | None:
        """Ranks that trade sequence for heads."""
        return self._group("ulysses")

    def seq_group(self) -> dist.ProcessGroup | None:
        """Ranks over which the sequence is cut, in ``seq_rank`` order."""
        return self._group("seq")

    def to_llm_mapping(self) -> Mapping:
        """Return the tensor-parallel group as linear layers read it."""
        group = self._group("tp") if self.tp_size > 1 else None
        # The axes below tp vary faster, so neighbours in the group stand seq_size apart.
        first = self.rank - self.tp_rank * self.seq_size
        return Mapping(
            world_size=self.world_size,
            rank=self.rank,
            tp_size=self.tp_size,
            tp_rank=self.tp_rank,
            tp_group=[first + i * self.seq_size for i in range(self.tp_size)],
            tp_group_pg=group,
        )
