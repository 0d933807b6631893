# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the project logger: the standard library's, one line per message on stderr."""

import logging
import sys
from collections.abc import Hashable


class _Logger:
    """The few calls that VisualGen makes; ``*_once`` drops repeats of a key."""

    def __init__(self) -> None:
        self._seen: set[Hashable] = set()
        self._log = logging.getLogger("visual_gen")
        if not self._log.handlers:
            handler = logging.StreamHandler(sys.stderr)
            handler.setFormatter(logging.Formatter("[visual_gen] %(levelname)s %(message)s"))
            self._log.addHandler(handler)
            self._log.propagate = False
        self._log.setLevel(logging.WARNING)

    def set_level(self, level: str) -> None:
        """Set the lowest level shown, by its upper- or lower-case name."""
        self._log.setLevel(level.upper())

    def debug(self, message: str) -> None:
        """Log at DEBUG."""
        self._log.debug(message)

    def info(self, message: str) -> None:
        """Log at INFO."""
        self._log.info(message)

    def warning(self, message: str) -> None:
        """Log at WARNING."""
        self._log.warning(message)

    def error(self, message: str) -> None:
        """Log at ERROR."""
        self._log.error(message)

    def _once(self, emit, message: str, key: Hashable | None) -> None:
        key = message if key is None else key
        if key not in self._seen:
            self._seen.add(key)
            emit(message)

    def debug_once(self, message: str, key: Hashable | None = None) -> None:
        """Log at DEBUG, only the first time that ``key`` (default: the message) is seen."""
        self._once(self.debug, message, key)

    def info_once(self, message: str, key: Hashable | None = None) -> None:
        """Log at INFO, only the first time that ``key`` (default: the message) is seen."""
        self._once(self.info, message, key)

    def warning_once(self, message: str, key: Hashable | None = None) -> None:
        """Log at WARNING, only the first time that ``key`` (default: the message) is seen."""
        self._once(self.warning, message, key)


logger = _Logger()
