#!/bin/sh
# The times in IGMP queries, as two readers of the same four packets give them.
#
# Packages: Debian 12 (bookworm) tcpdump 4.99.3-1, libpcap0.8 1.10.3-1, libdbus-1-3 1.14.10-1~deb12u1; Go
#           github.com/gopacket/gopacket v1.7.7 and github.com/google/gopacket v1.1.19. Needs go, python3 and an amd64
#           Linux with bookworm among its apt sources.
# Expected: a reader that gives a time for a field gives the one that the RFC means. The time to answer is in tenths of
#           a second, the time between queries in seconds; from 128 on both have an exponent in IGMPv3 (RFC 3376,
#           4.1.1 and 4.1.7), and in IGMPv2 neither has (RFC 2236, 2.2).
# Seen:     gopacket, the old and the maintained one, reads the usual 125 s between queries as 12.5 s. From 128 on it
#           takes mantissa for exponent, and keeps the low octet of the result only, which is mostly zero: 20.8 s are 0,
#           51.2 s are 14.4 s, and IGMPv2's plain 20 s are 0. tcpdump reads 20.8 s and 51.2 s.
set -eu
tmp=$(mktemp -d)
trap 'chmod -R u+w "$tmp"; rm -rf "$tmp"' EXIT
cd "$tmp"
apt-get download -qq tcpdump=4.99.3-1 libpcap0.8=1.10.3-1 libdbus-1-3=1.14.10-1~deb12u1 2>apt ||
    { cat apt >&2; exit 1; }
for deb in *.deb; do dpkg -x "$deb" root; done
export LD_LIBRARY_PATH="$tmp/root/usr/lib/x86_64-linux-gnu:$tmp/root/lib/x86_64-linux-gnu"

python3 - <<'PYTHON'
import socket, struct


def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def query(code, interval=None):
    """A general query, of IGMPv3 if it has an interval. The IP header has the router alert option."""
    tail = b"" if interval is None else struct.pack("!BBH", 2, interval, 0)
    igmp = bytearray(struct.pack("!BBH4s", 0x11, code, 0, b"") + tail)
    igmp[2:4] = struct.pack("!H", checksum(igmp))
    ip = bytearray(struct.pack("!BBHHHBBH", 0x46, 0xc0, 24 + len(igmp), 0, 0x4000, 1, 2, 0))
    ip += socket.inet_aton("192.0.2.1") + socket.inet_aton("224.0.0.1") + bytes.fromhex("94040000")
    ip[10:12] = struct.pack("!H", checksum(ip))
    return bytes.fromhex("01005e000001" "020000000001" "0800") + ip + igmp


with open("queries.pcap", "wb") as capture:
    capture.write(struct.pack("<IHHiIII", 0xa1b2c3d4, 2, 4, 0, 0, 65535, 1))
    # 10 s and 125 s, which are the defaults; 20.8 s and 208 s; 51.2 s and 512 s; 20 s of IGMPv2.
    for frame in query(100, 125), query(0x8a, 0x8a), query(0xa0, 0xa0), query(200):
        capture.write(struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame)
PYTHON

export GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOFLAGS=-mod=mod
for module in "gopacket/gopacket v1.7.7" "google/gopacket v1.1.19"; do
    name=${module% *}
    mkdir -p "$name"
    cat >"$name/main.go" <<GO
package main

import (
	"fmt"
	"os"

	"github.com/$name"
	"github.com/$name/layers"
	"github.com/$name/pcapgo"
)

func main() {
	capture, err := pcapgo.NewReader(os.Stdin)
	if err != nil {
		panic(err)
	}
	for {
		frame, _, err := capture.ReadPacketData()
		if err != nil {
			return
		}
		switch query := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default).
			Layer(layers.LayerTypeIGMP).(type) {
		case *layers.IGMP:
			fmt.Println("$name v3: answer in", query.MaxResponseTime, "next query in", query.IntervalTime)
		case *layers.IGMPv1or2:
			fmt.Println("$name v2: answer in", query.MaxResponseTime)
		}
	}
}
GO
    printf 'module times\n\ngo 1.21\n\nrequire github.com/%s\n' "$module" >"$name/go.mod"
done
{
    root/usr/bin/tcpdump -nnvr queries.pcap 2>tcpdump.log |
        sed -n 's/.*igmp query v3 .max resp time \(.*\)\]/tcpdump v3: answer in \1/p'
    for name in gopacket/gopacket google/gopacket; do
        (cd "$name" && go run . <"$tmp/queries.pcap" 2>"$tmp/go.log") || { cat go.log; exit 1; }
    done
} >seen
cat seen
diff - seen <<'EXPECTED'
tcpdump v3: answer in 20.8s
tcpdump v3: answer in 51.2s
gopacket/gopacket v3: answer in 10s next query in 12.5s
gopacket/gopacket v3: answer in 0s next query in 0s
gopacket/gopacket v3: answer in 14.4s next query in 14.4s
gopacket/gopacket v2: answer in 0s
google/gopacket v3: answer in 10s next query in 12.5s
google/gopacket v3: answer in 0s next query in 0s
google/gopacket v3: answer in 14.4s next query in 14.4s
google/gopacket v2: answer in 0s
EXPECTED
