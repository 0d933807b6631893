# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Write a wheel of pure Python without a build backend: a zip file with three texts about itself.

See "Binary distribution format" in the Python packaging specifications.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

# The earliest that a zip file can hold, so that the same contents give the same wheel.
_DATE = (1980, 1, 1, 0, 0, 0)


def write_wheel(
    folder: Path, module: str, name: str, version: str, files: dict[str, str], licence: str
) -> Path:
    """Write a wheel and return its path.

    Args:
        folder: where to, made if need be.
        module: the name of the distribution in file names.
        name: its name on an index.
        version: its version.
        files: path from site-packages -> text.
        licence: the text of its licence, Apache-2.0.
    """
    info = f"{module}-{version}.dist-info"
    metadata = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: Apache-2.0\n"
        "Summary: Exact text K/V for Cosmos3 in TensorRT-LLM VisualGen, applied on import\n"
        "Requires-Python: >=3.10\nLicense-File: LICENSE\n"
    )
    wheel = "Wheel-Version: 1.0\nGenerator: patchset\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    members = files | {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": wheel,
        f"{info}/LICENSE": licence,
    }
    record = "".join(f"{path},{_digest(text)}\n" for path, text in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in members.items():
            entry = zipfile.ZipInfo(member, _DATE)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, text.encode(), zipfile.ZIP_DEFLATED)
    return path


def _digest(text: str) -> str:
    data = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(data)}"
