//! Experiments, the papers' and our own, and the costs of their machines, as TOML; `weir lab` reads
//! them.

/// Experiments by name.
pub const EXPERIMENTS: &[(&str, &str)] = &[
    ("dong-fig2", include_str!("../scenarios/dong-fig2.toml")),
    ("dong-fig6-9", include_str!("../scenarios/dong-fig6-9.toml")),
    ("dong-fig10", include_str!("../scenarios/dong-fig10.toml")),
    ("dong-fig11", include_str!("../scenarios/dong-fig11.toml")),
    ("dong-fig12-15", include_str!("../scenarios/dong-fig12-15.toml")),
    ("guo", include_str!("../scenarios/guo.toml")),
    ("raj-fig4", include_str!("../scenarios/raj-fig4.toml")),
    ("raj-fig5", include_str!("../scenarios/raj-fig5.toml")),
    ("raj-fig8", include_str!("../scenarios/raj-fig8.toml")),
    ("raj-fig9", include_str!("../scenarios/raj-fig9.toml")),
    ("dong-fig16", include_str!("../scenarios/dong-fig16.toml")),
    ("zhang-ladder", include_str!("../scenarios/zhang-ladder.toml")),
    ("thakur-table1", include_str!("../scenarios/thakur-table1.toml")),
    ("thakur-section3", include_str!("../scenarios/thakur-section3.toml")),
    ("auto-udp", include_str!("../scenarios/auto-udp.toml")),
    ("auto-closed", include_str!("../scenarios/auto-closed.toml")),
    ("auto-mixed", include_str!("../scenarios/auto-mixed.toml")),
    ("auto-guests", include_str!("../scenarios/auto-guests.toml")),
    ("auto-containers", include_str!("../scenarios/auto-containers.toml")),
    ("auto-local", include_str!("../scenarios/auto-local.toml")),
    ("auto-two-layer", include_str!("../scenarios/auto-two-layer.toml")),
    ("big-vifs", include_str!("../scenarios/big-vifs.toml")),
    ("big-workers", include_str!("../scenarios/big-workers.toml")),
    ("nested", include_str!("../scenarios/nested.toml")),
];

/// The experiment that `weir lab validate` predicts and measures, which belongs to no paper.
pub const REALITY: (&str, &str) = ("reality", include_str!("../scenarios/reality.toml"));

/// Profiles by name.
pub const PROFILES: &[(&str, &str)] = &[
    ("dong-2011", include_str!("../scenarios/profiles/dong-2011.toml")),
    ("guo-2009", include_str!("../scenarios/profiles/guo-2009.toml")),
    ("raj-2006-device", include_str!("../scenarios/profiles/raj-2006-device.toml")),
    ("raj-2006-host", include_str!("../scenarios/profiles/raj-2006-host.toml")),
    ("raj-2006-mailbox", include_str!("../scenarios/profiles/raj-2006-mailbox.toml")),
    ("dong-2011-10g", include_str!("../scenarios/profiles/dong-2011-10g.toml")),
    ("zhang-2010", include_str!("../scenarios/profiles/zhang-2010.toml")),
    ("thakur-2014", include_str!("../scenarios/profiles/thakur-2014.toml")),
    ("nested", include_str!("../scenarios/profiles/nested.toml")),
    ("big-host", include_str!("../scenarios/profiles/big-host.toml")),
    ("two-cores", include_str!("../scenarios/profiles/two-cores.toml")),
];

/// Hosts to plan, by name.
pub const HOSTS: &[(&str, &str)] = &[("example", include_str!("../scenarios/hosts/example.toml"))];
