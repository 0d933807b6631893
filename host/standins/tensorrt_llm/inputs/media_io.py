# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the reading of pictures, by Pillow, and for the names of media."""

import io

from PIL import Image

MediaModality = str


class ImageMediaIO:
    """Reads a picture."""

    def __init__(self, format: str) -> None:
        """Take ``format``, which has to be "pil"."""
        if format != "pil":
            raise ValueError(f"format={format!r}; the stand-in host has 'pil' alone")

    def load_bytes(self, data: bytes) -> Image.Image:
        """Return the picture; OSError where it is none."""
        image = Image.open(io.BytesIO(data))
        image.load()
        return image


def sniff_media_kind(data: bytes) -> str:
    """Return "video" for a file of numpy.save(), which clips are here, and "image" for others."""
    return "video" if data.startswith(b"\x93NUMPY") else "image"
