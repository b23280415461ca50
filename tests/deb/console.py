"""console.py PTY PATIENCE COMMAND: runs a command in the shell at a guest's console, and prints what it says."""

import os
import re
import select
import sys
import time
import tty

pty, patience, command = sys.argv[1], float(sys.argv[2]), sys.argv[3]
end = time.monotonic() + patience
descriptor = os.open(pty, os.O_RDWR | os.O_NOCTTY)
tty.setraw(descriptor)
said = b""
asked = 0.0
while time.monotonic() < end:
    # A guest that boots hears nothing; it is asked again. The shell has the end's number from arithmetic, the echo not.
    if b"begun-42" not in said and time.monotonic() > asked + 2:
        os.write(descriptor, b"\necho begun-$((6 * 7))\n")
        asked = time.monotonic()
    elif b"begun-42" in said and asked:
        os.write(descriptor, command.encode() + b"; echo ended-$?-\n")
        asked = 0.0
        said = b"begun-42"
    if select.select([descriptor], [], [], 0.2)[0]:
        said += os.read(descriptor, 4096)
    ended = re.search(rb"ended-(\d+)-", said)
    if ended:
        print(said.decode(errors="replace").replace("\r", ""))
        sys.exit(int(ended[1]))
print(said.decode(errors="replace"))
sys.exit(f"no answer at {pty} within {patience} s")
