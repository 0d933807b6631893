# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Opens and reads a report of the parity run."""

import base64
import io
import json
import re
from html.parser import HTMLParser

from parity.show import REPORT_FILES
from PIL import Image


class Page(HTMLParser):
    """Tags, links and text of a page; an unclosed element is an error."""

    VOID = {"meta", "img", "source", "link", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.references, self.text = [], [], ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)
        self.references += [v for k, v in attributes if k in ("src", "srcset", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def check_report(folder, pictures: bool = True) -> dict:
    """Opens and reads every file of a report, with pictures of latents or not; returns its JSON."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(REPORT_FILES)
    facts = json.loads((folder / "parity.json").read_text())
    page = Page((folder / "report.html").read_text())
    assert len(page.references) > 4 if pictures else len(page.references) == 2
    for reference in page.references:
        kind, data = reference.split(",", 1)
        # Nothing is fetched from anywhere.
        assert kind in ("data:image/png;base64", "data:image/gif;base64")
        picture = Image.open(io.BytesIO(base64.b64decode(data)))
        picture.load()
        assert min(picture.size) >= 1
    table = (folder / "parity.md").read_text()
    for check in facts["checks"]:
        assert check["name"] in page.text
        assert f"| {check['status']} | {check['name']} |" in table
    for text in (page.text, table):
        # A placeholder that nothing filled.
        assert not re.search(r"\$\{?[a-z_]+", text)
    return facts
