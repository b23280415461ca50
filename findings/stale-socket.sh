#!/bin/sh
# Whether a program can see that nobody listens at a Unix socket's file any more without being seen by who does listen.
#
# Package:  none, the kernel that runs this, asked by python3. Seen on Linux 6.18.
# Expected: no. A file that was left over looks like any other, and a connection that is tried is one that the listener
#           has to accept and lose: QEMU, with room for one peer, then turns the real one away.
# Seen:     yes. connect(2) with a socket of another type looks for the file's owner before it compares types. Left over,
#           the file gives ECONNREFUSED; with an owner, also one that does not listen yet, EPROTOTYPE. A listener has
#           nothing to accept. A type that is the same connects: so a datagram socket asks about streams.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
cat >ask.py <<'PY'
import errno
import os
import socket

STREAM, DGRAM, SEQPACKET = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET


def asked(kind, path):
    with socket.socket(socket.AF_UNIX, kind) as asks:
        error = asks.connect_ex(path)
        return errno.errorcode[error] if error else "connected"


for name, kind in ("stream", STREAM), ("seqpacket", SEQPACKET):
    path = f"{name}.sock"
    owner = socket.socket(socket.AF_UNIX, kind)
    owner.bind(path)
    bound = asked(DGRAM, path)
    owner.listen(1)
    owner.setblocking(False)
    listening = asked(DGRAM, path)
    try:
        owner.accept()
        told = "a connection"
    except BlockingIOError:
        told = "nothing"
    owner.close()
    print(name, "bound:", bound, "listening:", listening, "its owner has", told, "left over:", asked(DGRAM, path))
    os.remove(path)
PY
python3 ask.py | tee seen

for kind in stream seqpacket; do
    grep -qx "$kind bound: EPROTOTYPE listening: EPROTOTYPE its owner has nothing left over: ECONNREFUSED" seen
done
