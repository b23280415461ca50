#!/bin/sh
# Two pcapng captures, joined by `cat`, as the format allows: nanoseconds first, then microseconds.
#
# Packages: PyPI scapy 2.8.0, python-pcapng 2.1.1.
# Expected: both packets are of 2023-11-14. A section header starts afresh: interfaces and their time units
#           belong to their section.
# Seen:     python-pcapng says so. scapy reads the second section in the unit of the first: the second packet is
#           of 1970-01-20. The interface of the second section has no if_tsresol and so means microseconds.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir scapy==2.8.0 python-pcapng==2.1.1
cd "$tmp"

venv/bin/python - <<'PYTHON' 2>err || { cat err >&2; exit 1; }
import struct, pcapng
from scapy.utils import PcapNgReader

def block(kind, body):
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size

FRAME = bytes.fromhex("0200000000010200000000020800") + bytes(46)
SECTION = block(0x0a0d0d0a, struct.pack("<IHHq", 0x1a2b3c4d, 1, 0, -1))

def capture(options, ticks):
    interface = block(1, struct.pack("<HHI", 1, 0, 0) + options)
    packet = struct.pack("<IIIII", 0, ticks >> 32, ticks & 0xffffffff, len(FRAME), len(FRAME)) + FRAME
    return SECTION + interface + block(6, packet)

NANOSECONDS = struct.pack("<HHB3xHH", 9, 1, 9, 0, 0)
first = capture(NANOSECONDS, 1700000000 * 10**9)
second = capture(b"", 1700000060 * 10**6)

def times(data):
    with open("capture", "wb") as f:
        f.write(data)
    by_scapy = [round(float(p.time)) for p in PcapNgReader("capture")]
    with open("capture", "rb") as f:
        by_pcapng = [round(float(b.timestamp)) for b in pcapng.FileScanner(f) if hasattr(b, "packet_data")]
    return by_scapy, by_pcapng

for name, data in (("second alone", second), ("both joined", first + second)):
    print("%-12s scapy %s, python-pcapng %s" % (name, *times(data)))
assert times(second) == ([1700000060], [1700000060])
assert times(first + second) == ([1700000000, 1700000], [1700000000, 1700000060]), "the behaviour has changed"
PYTHON
