# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-in for the kernels that compute a control from a video: controls are given here."""


def _refuse(*args):
    raise NotImplementedError("no control is computed on the stand-in host; give its clip")


bilateral_filter = canny_edges = resize_area_u8 = resize_cubic_u8 = resize_linear_u8 = _refuse
