#!/bin/sh
# A DNS answer whose TTL has its top bit set.
#
# Packages: PyPI dnspython 2.9.2, dnslib 0.9.26; npm dns-packet 5.6.1.
# Expected: each reader gives 0. RFC 2181 (8): a TTL with the top bit set counts as zero. A cache that takes the
#           number at its face keeps the answer for 68 years and more.
# Seen:     dnspython gives 0. dnslib and dns-packet give 2147483649.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
python3 -m venv "$tmp/venv"
"$tmp/venv/bin/pip" install -q --no-cache-dir dnspython==2.9.2 dnslib==0.9.26
cd "$tmp"
npm_config_cache="$tmp/npm" npm install --silent --no-audit --no-fund dns-packet@5.6.1 >/dev/null

# One question (a., type A) and its answer: 192.0.2.1, TTL 0x80000001.
message=00018180000100010000000001610000010001c00c00010001800000010004c0000201
{
    venv/bin/python - "$message" <<'PYTHON'
import sys, dnslib, dns.message
wire = bytes.fromhex(sys.argv[1])
print("dnspython", dns.message.from_wire(wire).answer[0].ttl)
print("dnslib", dnslib.DNSRecord.parse(wire).rr[0].ttl)
PYTHON
    node -e '
const answer = require("dns-packet").decode(Buffer.from(process.argv[1], "hex")).answers[0]
console.log("dns-packet", answer.ttl)
' "$message"
} >seen
cat seen
printf '%s\n' 'dnspython 0' 'dnslib 2147483649' 'dns-packet 2147483649' | diff - seen
