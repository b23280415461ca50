#!/bin/sh
# Whether a DHCPv6 library reads back what it has written: the options of an answer to an Information-request.
#
# Package:  crates.io dhcproto 0.15.0. Needs cargo.
# Expected: every option that the library has a type for is read as that type.
# Seen:     DNS servers, search domains and a preference come back as they were written. The information refresh time
#           (option 32, RFC 8415 section 21.23) is written correctly, and read as an unknown option of four bytes: a
#           client that matches on the library's own name for it never learns when to ask again.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
cat >Cargo.toml <<'TOML'
[package]
name = "refresh"
version = "0.0.0"
edition = "2021"
[dependencies]
dhcproto = "=0.15.0"
TOML
mkdir src
cat >src/main.rs <<'RUST'
use dhcproto::v6::{DhcpOption, DhcpOptions, Message, MessageType};
use dhcproto::{Decodable, Encodable, Encoder};

fn main() {
    let written = [
        DhcpOption::Preference(7),
        DhcpOption::DomainNameServers(vec!["2001:db8::53".parse().unwrap()]),
        DhcpOption::InformationRefreshTime(3600),
    ];
    for option in written {
        let mut message = Message::new(MessageType::Reply);
        let mut options = DhcpOptions::new();
        options.insert(option.clone());
        message.set_opts(options);
        let mut bytes = Vec::new();
        message.encode(&mut Encoder::new(&mut bytes)).unwrap();
        let read = Message::from_bytes(&bytes).unwrap();
        let read: Vec<_> = read.opts().iter().cloned().collect();
        let hex: String = bytes[4..].iter().map(|byte| format!("{byte:02x}")).collect();
        println!("{hex} {}", if read == [option] { "the same".into() } else { format!("{read:?}") });
    }
}
RUST
CARGO_HOME="$tmp/cargo" CARGO_TARGET_DIR="$tmp/target" cargo build -q
target/debug/refresh | tee seen

grep -qx '0007000107 the same' seen
grep -qx '0017001020010db8000000000000000000000053 the same' seen
grep -qx '0020000400000e10 \[Unknown(UnknownOption { code: 32, data: \[0, 0, 14, 16\] })\]' seen
