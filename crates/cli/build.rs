//! Makes the release's programs smaller by packing their relative relocations (`DT_RELR`), where glibc reads them.

use std::{env::var, process::Command};

/// Since this version glibc reads packed relocations.
const GLIBC_MIN: (u32, u32) = (2, 36);

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name, value| var(name).is_ok_and(|it| it == value);
    let is_native = var("HOST") == var("TARGET");
    let reads = || glibc().is_some_and(|it| it >= GLIBC_MIN);
    if is("PROFILE", "release") && is("CARGO_CFG_TARGET_ENV", "gnu") && is_native && reads() {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// The version of this host's glibc.
fn glibc() -> Option<(u32, u32)> {
    let told = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?.stdout;
    let (major, minor) =
        str::from_utf8(&told).ok()?.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
