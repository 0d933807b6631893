# SPDX-FileCopyrightText: Copyright (c) 2026 the cosmos3-text-kv authors
# SPDX-License-Identifier: Apache-2.0
"""Tell whether the overlay would be active: in a fresh process, in a spawned one, without PYTHON*.

Each is asked in a process of its own, as if the switch were on. One that the hook does not reach
would run the installed file without a word. Needs nothing of this package, so that it can be run as
a script where the package is not installed.
"""

import json
import os
import subprocess
import sys

SWITCH = "COSMOS3_TEXT_KV_OVERLAY"
# An expression, so that eval can be what a spawned process calls.
ASK = (
    "__import__('json').dumps((lambda hook: hook and hook.standing())"
    "(__import__('sys').modules.get('cosmos3_text_kv')))"
)
SPAWN = (
    "import multiprocessing\n"
    "with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
    f"    print(pool.apply(eval, ({ASK!r},)))"
)


def ask(code: str, env: dict[str, str]) -> tuple[bool, str]:
    """Return whether the overlay would be active in a process, and what it says of it."""
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    try:
        answer = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError:
        return False, f"no answer: {(done.stderr.strip() or 'nothing was said').splitlines()[-1]}"
    if answer is None:
        return False, "NOT REACHED: there is no hook, and the installed file would run silently"
    return tuple(answer)


def main() -> int:
    """Ask all three; return 0 if the overlay would be active in each."""
    env = dict(os.environ)
    if env.get(SWITCH, "0") in ("", "0"):
        env[SWITCH] = "1"
    reset = {name: value for name, value in env.items() if not name.startswith("PYTHON")}
    cases = {
        "fresh": (f"print({ASK})", env),
        "spawned": (SPAWN, env),
        "reset": (f"print({ASK})", reset),
    }
    failed = 0
    for name, (code, environment) in cases.items():
        good, said = ask(code, environment)
        failed += not good
        print(f"{'PASS' if good else 'FAIL'} overlay/{name} {said} active", flush=True)
    on = env[SWITCH] == os.environ.get(SWITCH)
    print(f"{'PASS' if on else 'SKIP'} overlay/switch {SWITCH} {'set' if on else 'not set here'} 1")
    print(f"{3 - failed + on} passed, {failed} failed, {int(not on)} skipped")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
