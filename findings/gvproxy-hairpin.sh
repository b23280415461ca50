#!/bin/sh
# Two stations behind one connection to gvproxy, which is a switch with a gateway.
#
# Package:  Go github.com/containers/gvisor-tap-vsock v0.8.7 (gvproxy). Needs go and python3.
# Expected: a switch sends no frame back to the port that it came from (IEEE 802.1Q, 8.6.1). A frame from one station
#           to the other has arrived already.
# Seen:     gvproxy sends it back over the same connection. A switch in front of it sees one guest's frames come in
#           from outside. A broadcast and a frame to an unknown address do not come back.
set -eu
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOBIN="$tmp" \
    go install github.com/containers/gvisor-tap-vsock/cmd/gvproxy@v0.8.7 2>"$tmp/log" || { cat "$tmp/log"; exit 1; }
cat >"$tmp/stations.py" <<'PYTHON'
import socket, struct, subprocess, sys, time
place = sys.argv[1]
proxy = subprocess.Popen(
    [f"{place}/gvproxy", "-listen", f"unix://{place}/api", "-listen-qemu", f"unix://{place}/guests", "-ssh-port", "-1"],
    stdout=open(f"{place}/log", "w"), stderr=subprocess.STDOUT)
link = socket.socket(socket.AF_UNIX)
for attempt in range(100):
    try:
        link.connect(f"{place}/guests")
        break
    except OSError:
        time.sleep(0.05)
one, other, unknown = (bytes.fromhex("02000000000" + digit) for digit in "abc")

def send(to, sender, text):
    # 0x88b5 is an EtherType for experiments. Four bytes of length stand before a frame.
    frame = (to + sender + b"\x88\xb5" + text.encode()).ljust(60, b"\0")
    link.sendall(struct.pack("!I", len(frame)) + frame)

def received():
    link.settimeout(1)
    texts = []
    try:
        while True:
            length = struct.unpack("!I", link.recv(4, socket.MSG_WAITALL))[0]
            texts.append(link.recv(length, socket.MSG_WAITALL)[14:].rstrip(b"\0").decode())
    except TimeoutError:
        return texts

send(b"\xff" * 6, other, "from the other to all")
send(b"\xff" * 6, one, "from one to all")
print("back after broadcasts", received())
send(unknown, one, "to an unknown address")
print("back after an unknown address", received())
send(other, one, "from one to the other")
print("back after a known address", received())
link.close()
proxy.terminate()
proxy.wait()
PYTHON
python3 "$tmp/stations.py" "$tmp" >"$tmp/seen"
cat "$tmp/seen"
diff - "$tmp/seen" <<'EXPECTED'
back after broadcasts []
back after an unknown address []
back after a known address ['from one to the other']
EXPECTED
