//! A program with a switch in it: two interfaces, each on a vhost-user socket in a directory. Each second it prints
//! how many frames passed.
//!
//! ```sh
//! cargo run -p weir-switch --example embed -- /tmp/embedded
//! ```
//!
//! Plug a virtual machine, or a guest of `weir-vif`, into `a.sock` and another into `b.sock`.

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use weir_config::{Config, SocketPath, SwitchConfig, VifConfig};
use weir_switch::Switch;
use weir_switch::stats::PortStats;

fn main() -> Result<(), Box<dyn Error>> {
    let dir = std::env::args_os().nth(1).ok_or("usage: embed DIRECTORY")?;
    serve(&std::path::absolute(dir)?, |line| {
        println!("{line}");
        thread::sleep(Duration::from_secs(1));
        true
    })
}

/// Serves guests on `a.sock` and `b.sock` in `dir` as long as `show` returns true. It gets a line about both.
pub fn serve(dir: &Path, mut show: impl FnMut(&str) -> bool) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(dir)?;
    let socket = |name: &str| SocketPath::try_from(dir.join(name).as_path());
    let vifs = vec![
        VifConfig::new("a".parse()?, socket("a.sock")?),
        VifConfig::new("b".parse()?, socket("b.sock")?),
    ];
    let config = Config::of_vifs(SwitchConfig::new(socket("control.sock")?), vifs);
    let switch = Switch::start(&config)?;
    while show(&counts(&switch.stats().ports)) {}
    Ok(())
}

fn counts(ports: &[PortStats]) -> String {
    let counts = |port: &PortStats| {
        let PortStats { name, state, rx, tx, .. } = port;
        format!("{name}: {state}, {} frames sent, {} received", tx.frames, rx.frames)
    };
    ports.iter().map(counts).collect::<Vec<_>>().join("; ")
}
