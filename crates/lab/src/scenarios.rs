//! Experiments, the papers' and our own, and the costs of their machines, as TOML; `weir lab` reads
//! them.

use std::sync::LazyLock;

/// Files with experiments, each below its name.
const FILES: [&str; 9] = [
    include_str!("../scenarios/dong.txt"),
    include_str!("../scenarios/guo.txt"),
    include_str!("../scenarios/raj.txt"),
    include_str!("../scenarios/dong-fig16.txt"),
    include_str!("../scenarios/zhang.txt"),
    include_str!("../scenarios/thakur.txt"),
    include_str!("../scenarios/auto.txt"),
    include_str!("../scenarios/auto-layers.txt"),
    include_str!("../scenarios/big.txt"),
];

/// Experiments by name.
pub static EXPERIMENTS: LazyLock<Vec<(&str, &str)>> =
    LazyLock::new(|| FILES.into_iter().flat_map(parts).collect());

/// The experiment that `weir lab validate` predicts and measures, which belongs to no paper.
pub const REALITY: (&str, &str) = ("reality", include_str!("../scenarios/reality.toml"));

/// Profiles by name.
pub static PROFILES: LazyLock<Vec<(&str, &str)>> =
    LazyLock::new(|| parts(include_str!("../scenarios/profiles.txt")).collect());

/// Splits a file at its lines `== NAME ==`.
fn parts(file: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    file.split("\n== ").filter_map(|part| part.split_once(" ==\n"))
}

/// Hosts to plan, by name.
pub const HOSTS: &[(&str, &str)] = &[("example", include_str!("../scenarios/hosts/example.toml"))];
