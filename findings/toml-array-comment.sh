#!/bin/sh
# What is left of the comments in a TOML array when a program removes one element.
#
# Packages: crates.io toml_edit 0.25.20; PyPI tomlkit 0.15.2. Needs cargo.
# Expected: an element goes together with the comment behind it on its line.
# Seen:     tomlkit does that. toml_edit drops the second of two elements and keeps its comment, and loses the first's:
#           the file now says of port 1 what it said of port 2. A comment belongs to the element after it there.
set -eu
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp"
python3 -m venv venv
venv/bin/pip install -q --no-cache-dir tomlkit==0.15.2

cat >ports.toml <<'TOML'
ports = [
  1, # uplink
  2, # customer
]
TOML
cat >Cargo.toml <<'TOML'
[package]
name = "remove"
version = "0.0.0"
edition = "2021"
[dependencies]
toml_edit = "=0.25.20"
TOML
mkdir src
cat >src/main.rs <<'RUST'
fn main() {
    let text = std::fs::read_to_string("ports.toml").unwrap();
    let mut document: toml_edit::DocumentMut = text.parse().unwrap();
    document["ports"].as_array_mut().unwrap().remove(1);
    print!("{document}");
}
RUST
CARGO_HOME="$tmp/cargo" CARGO_TARGET_DIR="$tmp/target" cargo build -q
echo '## toml_edit'
target/debug/remove | tee by_toml_edit
echo '## tomlkit'
venv/bin/python - <<'PYTHON' | tee by_tomlkit
import tomlkit
document = tomlkit.parse(open("ports.toml").read())
document["ports"].pop(1)
print(tomlkit.dumps(document), end="")
PYTHON

printf 'ports = [\n  1, # customer\n]\n' | diff - by_toml_edit
printf 'ports = [\n  1, # uplink\n]\n' | diff - by_tomlkit
