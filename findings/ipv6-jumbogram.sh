#!/bin/sh
# An IPv6 packet of 70,000 octets, as Linux shows it to a capture with "big TCP" (RFC 2675 jumbo payload option).
#
# Packages: PyPI scapy 2.8.0, os-ken 4.2.2, dpkt 1.9.8.
# Expected: scapy, which has a class for the option (Jumbo), reads the packet, and fills in the lengths of one that it
#           builds, as it does for every other packet. dpkt and os-ken, which do not know the option, read nothing
#           behind a payload length of zero.
# Seen:     scapy reads all 70,000 octets of TCP payload, and so does dpkt; os-ken stops at the IPv6 header. scapy does
#           not build the packet: it raises struct.error, since it puts the sum in the 16-bit field. Told that this
#           field is zero, it builds, and leaves the option's own length at zero. Both must be given.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir scapy==2.8.0 os-ken==4.2.2 dpkt==1.9.8

"$tmp/venv/bin/python" - <<'PYTHON' 2>"$tmp/err" || { cat "$tmp/err" >&2; exit 1; }
import socket, struct
import dpkt
from os_ken.lib.packet import packet
from scapy.layers.inet import TCP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop, Jumbo
from scapy.layers.l2 import Ether

A, B, SIZE = "2001:db8::1", "2001:db8::2", 70000
tcp = struct.pack("!HHIIBBHHH", 1000, 3000, 1, 0, 0x50, 0x10, 1000, 0, 0) + bytes(SIZE)
hop_by_hop = bytes([6, 0, 0xc2, 4]) + struct.pack("!I", 8 + len(tcp))
ip6 = bytes.fromhex("6000000000000040") + socket.inet_pton(socket.AF_INET6, A) + socket.inet_pton(socket.AF_INET6, B)
frame = bytes.fromhex("02000000000102000000000286dd") + ip6 + hop_by_hop + tcp

seen = {"scapy reads": len(Ether(frame)[TCP].payload)}
seen["dpkt reads"] = len(dpkt.ethernet.Ethernet(frame).data.data.data)
seen["os-ken reads"] = " ".join(p.protocol_name if hasattr(p, "protocol_name") else "%d octets" % len(p)
                                for p in packet.Packet(frame).protocols)
for name, outer, jumbo in (
    ("no lengths", {}, {}),
    ("plen=0", {"plen": 0}, {}),
    ("both lengths", {"plen": 0}, {"jumboplen": 8 + len(tcp)}),
):
    option = IPv6ExtHdrHopByHop(options=[Jumbo(**jumbo)])
    try:
        built = bytes(IPv6(src=A, dst=B, **outer) / option / TCP(sport=1000, dport=3000) / bytes(SIZE))
        seen["scapy builds, " + name] = "jumbo payload length %d" % struct.unpack("!I", built[44:48])
    except Exception as e:
        seen["scapy builds, " + name] = type(e).__name__
for what, result in seen.items():
    print("%-27s %s" % (what, result))
assert seen == {
    "scapy reads": SIZE, "dpkt reads": SIZE, "os-ken reads": "ethernet ipv6",
    "scapy builds, no lengths": "error",
    "scapy builds, plen=0": "jumbo payload length 0",
    "scapy builds, both lengths": "jumbo payload length 70028",
}, "the behaviour has changed"
PYTHON
