#!/bin/sh
# The time of a packet whose pcapng interface counts in whole seconds, or in powers of two.
#
# Packages: Go github.com/gopacket/gopacket v1.7.7; PyPI python-pcapng 2.1.1.
# Expected: each file says 2023-11-14 22:13:20.5 UTC (the first: 20.0). Option if_tsresol may be any power of 10
#           from 0 (seconds), or, with the top bit set, any power of 2.
# Seen:     python-pcapng reads all three so. gopacket reads whole seconds (if_tsresol 0) as microseconds,
#           so that the packet is of 1970. It reads half a second of 2^-30 units as 0.536870912 s.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir python-pcapng==2.1.1

cat >"$tmp/files.py" <<'PYTHON'
import datetime, struct, pcapng

def block(kind, body):
    size = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + size + body + size

FRAME = bytes.fromhex("0200000000010200000000020800") + bytes(46)
SECTION = block(0x0a0d0d0a, struct.pack("<IHHq", 0x1a2b3c4d, 1, 0, -1))
for name, resolution, ticks in (
    ("seconds", 0, 1700000000),
    ("decimal", 9, 1700000000 * 10**9 + 5 * 10**8),
    ("binary", 0x80 | 30, 1700000000 * 2**30 + 2**29),
):
    interface = block(1, struct.pack("<HHI", 1, 0, 0) + struct.pack("<HHB3xHH", 9, 1, resolution, 0, 0))
    packet = struct.pack("<IIIII", 0, ticks >> 32, ticks & 0xffffffff, len(FRAME), len(FRAME)) + FRAME
    with open(name, "wb") as f:
        f.write(SECTION + interface + block(6, packet))
    with open(name, "rb") as f:
        t = [b.timestamp for b in pcapng.FileScanner(f) if hasattr(b, "packet_data")][0]
    print("python-pcapng", name, datetime.datetime.fromtimestamp(float(t), datetime.timezone.utc).isoformat())
PYTHON

export GOPATH="$tmp/go" GOCACHE="$tmp/cache" GOFLAGS="-mod=mod -modcacherw" GOTOOLCHAIN=local
mkdir "$tmp/read"
cat >"$tmp/read/main.go" <<'GO'
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/gopacket/gopacket/pcapgo"
)

func main() {
	for _, name := range []string{"seconds", "decimal", "binary"} {
		f, err := os.Open(name)
		if err != nil {
			panic(err)
		}
		r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
		if err != nil {
			panic(err)
		}
		_, info, err := r.ReadPacketData()
		if err != nil {
			panic(err)
		}
		fmt.Println("gopacket", name, info.Timestamp.UTC().Format(time.RFC3339Nano))
	}
}
GO
cd "$tmp/read"
go mod init example.test/read 2>/dev/null
go get github.com/gopacket/gopacket@v1.7.7 2>/dev/null
go build -o "$tmp/reader" .

cd "$tmp"
{ venv/bin/python files.py; ./reader; } >seen
cat seen
cat >expected <<'TEXT'
python-pcapng seconds 2023-11-14T22:13:20+00:00
python-pcapng decimal 2023-11-14T22:13:20.500000+00:00
python-pcapng binary 2023-11-14T22:13:20.500000+00:00
gopacket seconds 1970-01-01T00:28:20Z
gopacket decimal 2023-11-14T22:13:20.5Z
gopacket binary 2023-11-14T22:13:20.536870912Z
TEXT
diff expected seen
